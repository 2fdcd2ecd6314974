package protocol_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

var txnLimits = protocol.TxnLimits{MaxKey: 16, MaxOperations: 4}

func parseTxn(payload []byte) (x txn.Transaction, f protocol.TxnFault) {
	f = protocol.ParseTxn(payload, txnLimits, &x)
	return x, f
}

func TestParseTxn(t *testing.T) {
	t.Parallel()
	x, f := parseTxn(words("txn if a exists if b ver ^m1 once a m2 keep 1.5 set b px px 5 ft 7:0:n"))
	if f != (protocol.TxnFault{}) {
		t.Fatalf("refused: %+v", f)
	}
	if got := fmt.Sprintf("%s", x.Keys); got != "[a b]" {
		t.Errorf("keys %s", got)
	}
	if c := x.Conditions; len(c) != 2 || c[0].Check != txn.Exists || c[0].Key != 0 || c[1].Check != txn.MadeBy || c[1].Key != 1 || string(c[1].Operand) != "m1" || c[1].Op != 2 {
		t.Errorf("conditions %+v", c)
	}
	if o := x.Once[0]; o.Op != 3 || o.Key != 0 || string(o.Message) != "m2" || o.KeepMs != 2 {
		t.Errorf("once %+v", o)
	}
	want := hlc.Timestamp{Wall: 7, Node: "n"}
	if w := x.Writes; len(w) != 1 || w[0].Op != 4 || w[0].Key != 1 || string(w[0].Command.Value) != "px" || w[0].Command.ExpiryMs != 5 || w[0].Command.Token.At != want {
		t.Errorf("writes %+v", w)
	}
	own, of := x.Writes[0].Command.Token, statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: 9, Node: "request"}}
	x.Stamp(of, of)
	if w := x.Writes[0].Command; w.Token != own || w.Time != of {
		t.Errorf("stamped: token %v and time %v", w.Token, w.Time)
	}
}

func TestParseTxnRefuses(t *testing.T) {
	t.Parallel()
	longKey, longID := strings.Repeat("k", 17), strings.Repeat("m", protocol.MaxMessageID+1)
	for _, tc := range []struct {
		text string
		op   int
		want statestore.Fault
	}{
		{"FOO", 1, statestore.UnknownOperation},
		{"SET a 1 CANCEL", 2, statestore.WrongArgumentCount},
		{"CANCEL " + strings.Repeat("i", 257), 1, statestore.Syntax},
		{"CANCEL a b", 2, statestore.UnknownOperation},
		{"SET a 1 NX", 2, statestore.UnknownOperation},
		{"DEL a PX 5", 2, statestore.UnknownOperation},
		{"GET a", 1, statestore.UnknownOperation},
		{"SET", 1, statestore.WrongArgumentCount},
		{"DEL a SET b", 2, statestore.WrongArgumentCount},
		{"IF", 1, statestore.WrongArgumentCount},
		{"IF a", 1, statestore.WrongArgumentCount},
		{"IF a VALUE", 1, statestore.WrongArgumentCount},
		{"IF a VER", 1, statestore.WrongArgumentCount},
		{"ONCE a", 1, statestore.WrongArgumentCount},
		{"IF a MISSING", 1, statestore.Syntax},
		{"IF a VER ^", 1, statestore.Syntax},
		{"IF a VER ^" + longID, 1, statestore.Syntax},
		{"IF a VER soon", 1, statestore.MalformedTimestamp},
		{"IF a EXISTS IF b EXISTS IF a ABSENT", 3, statestore.SameKey},
		{"SET a 1 DEL a", 2, statestore.SameKey},
		{"ONCE a m ONCE a m", 2, statestore.SameKey},
		{"SET a 1 PX", 1, statestore.Syntax},
		{"SET a 1 PX 0", 1, statestore.Syntax},
		{"SET a 1 PX 1 PX 1", 1, statestore.Syntax},
		{"SET a 1 FT 1:0:n FT 1:0:n", 1, statestore.Syntax},
		{"DEL a FT", 1, statestore.Syntax},
		{"ONCE a m KEEP -1", 1, statestore.Syntax},
		{"ONCE a m KEEP 1 KEEP 1", 1, statestore.Syntax},
		{"ONCE a " + longID, 1, statestore.Syntax},
		{"ONCE a m DIGEST", 1, statestore.Syntax},
		{"ONCE a m DIGEST d DIGEST d", 1, statestore.Syntax},
		{"ONCE a m DIGEST " + strings.Repeat("d", protocol.MaxDigest+1), 1, statestore.Syntax},
		{"ONCE a m OPEN OPEN", 1, statestore.Syntax},
		{"ONCE a m OPEN DIGEST d", 1, statestore.Syntax},
		{"ONCE a m DIGEST d OPEN", 1, statestore.Syntax},
		{"DONE a", 1, statestore.WrongArgumentCount},
		{"DONE a " + longID, 1, statestore.Syntax},
		{"DONE a m VER", 1, statestore.Syntax},
		{"DONE a m VER -", 1, statestore.MalformedTimestamp},
		{"DONE a m VER soon", 1, statestore.MalformedTimestamp},
		{"DONE a m VER 1:0:n VER 1:0:n", 1, statestore.Syntax},
		{"DONE a m CTX", 1, statestore.Syntax},
		{"DONE a m CTX x CTX x", 1, statestore.Syntax},
		{"DONE a m KEEP 1", 2, statestore.UnknownOperation},
		{"DONE a m DONE a m", 2, statestore.SameKey},
		{"ONCE a m DONE a m", 2, statestore.SameKey},
		{"SET " + longKey + " 1", 1, statestore.Syntax},
		{"DEL a DEL b DEL c SET d 1 IF a EXISTS DEL e", 6, statestore.QuotaExceeded},
		{"IF a EXISTS IF b EXISTS IF c EXISTS IF d EXISTS IF e EXISTS", 5, statestore.QuotaExceeded},
		{"ONCE a m ONCE b m DONE c m ONCE d m DONE e m", 5, statestore.QuotaExceeded},
		{"PUBLISH a 1 PUBLISH a 1 PUBLISH a 1 PUBLISH a 1 PUBLISH a 1", 5, statestore.QuotaExceeded},
		{"SETTLE 1 SETTLE 2 SETTLE 3 SETTLE 4 SETTLE 5", 5, statestore.QuotaExceeded},
		{"CANCEL a CANCEL b CANCEL c CANCEL d CANCEL e", 5, statestore.QuotaExceeded},
	} {
		_, f := parseTxn(words("TXN " + tc.text))
		if f.Op != tc.op || f.Fault != tc.want || (f.Bound == statestore.MaxTxnOperations) != (tc.want == statestore.QuotaExceeded) {
			t.Errorf("%.60s: %+v, want operation %d: %v", tc.text, f, tc.op, tc.want)
		}
	}
	for _, payload := range []string{"*3\r\n$3\r\nTXN\r\n$3\r\nDEL\r\n$0\r\n\r\n", "*4\r\n$3\r\nTXN\r\n$4\r\nONCE\r\n$1\r\na\r\n$0\r\n\r\n"} {
		if _, f := parseTxn([]byte(payload)); f.Op != 1 || f.Fault != statestore.EmptyKey && f.Fault != statestore.Syntax {
			t.Errorf("%q: %+v", payload, f)
		}
	}
	digest := strings.Repeat("d", protocol.MaxDigest)
	if x, f := parseTxn(words("TXN ONCE a m DIGEST " + digest + " KEEP 5")); f != (protocol.TxnFault{}) || string(x.Once[0].Context) != digest || !x.Once[0].Compare || x.Once[0].KeepMs != 5 {
		t.Errorf("%+v, %+v", x.Once, f)
	}
	if _, f := parseTxn(words("TXN DEL a DEL b DEL c DEL d")); f != (protocol.TxnFault{}) {
		t.Errorf("refused at the bound: %+v", f)
	}
}

func TestTxnReplies(t *testing.T) {
	t.Parallel()
	version := hlc.Timestamp{Wall: 5, Counter: 6, Node: "n"}
	for _, tc := range []struct {
		reply statestore.Reply
		want  string
	}{
		{statestore.Reply{Count: statestore.Committed, Values: []statestore.PageValue{{Version: version}, {}}}, "*2\r\n:1\r\n*2\r\n$5\r\n5:6:n\r\n$-1\r\n"},
		{statestore.Reply{Count: statestore.Committed}, "*2\r\n:1\r\n*0\r\n"},
		{statestore.Reply{Count: statestore.AlreadyDone, Version: version}, "*2\r\n:0\r\n$5\r\n5:6:n\r\n"},
		{statestore.Reply{Count: statestore.ConditionFailed, Op: 3}, "*4\r\n:-1\r\n:3\r\n$-1\r\n$-1\r\n"},
		{statestore.Reply{Count: statestore.ConditionFailed, Op: 3, Value: []byte{}, Version: version}, "*4\r\n:-1\r\n:3\r\n$0\r\n\r\n$5\r\n5:6:n\r\n"},
		{statestore.Reply{Kind: statestore.Error, Op: 12, Fault: statestore.NotAuthorized}, "-ERR operation 12: not authorized\r\n"},
	} {
		if tc.reply.Kind == 0 {
			tc.reply.Kind = statestore.Transacted
		}
		got := protocol.AppendReply(nil, protocol.SDK, &tc.reply)
		if string(got) != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
		if _, err := protocol.ParseReply(got); err != nil {
			t.Errorf("%q: %v", got, err)
		}
	}
}

func TestSplitOperation(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"operation 3: not authorized": "3 not authorized", "operation 3": "0 operation 3", "operation x: y": "0 operation x: y",
		"operation 0: y": "0 operation 0: y", "operation -1: y": "0 operation -1: y", "syntax error": "0 syntax error",
	} {
		if op, rest := protocol.SplitOperation(text); fmt.Sprint(op, " ", rest) != want {
			t.Errorf("%q: %d, %q; want %s", text, op, rest, want)
		}
	}
}

// Whatever the payload is, a transaction refers to its own parts only, and its operations
// are numbered in order.
func FuzzParseTxn(f *testing.F) {
	for _, text := range []string{"IF a EXISTS", "IF a VER ^m ONCE a n SET a 1 PX 5 DEL b", "SET a 1 FT 1:0:n", "IF a VALUE v IF b VER - SET b 1", "ONCE a m OPEN CTX c KEEP 5 DONE b m VER 1:0:n CTX d"} {
		f.Add(words("TXN " + text))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var cmd statestore.Command
		if protocol.Parse(payload, protocol.Preview, 16, &cmd) != statestore.None || cmd.Verb != statestore.Txn {
			return
		}
		x, fault := parseTxn(payload)
		if fault.Fault != statestore.None {
			if fault.Op < 1 || fault.Op > 6*txnLimits.MaxOperations+1 {
				t.Errorf("a fault in operation %d", fault.Op)
			}
			return
		}
		for i := range x.Once {
			_ = x.Keys[x.Once[i].Key]
		}
		if most := x.MostOfAKind(); most == 0 || most > txnLimits.MaxOperations {
			t.Errorf("%d operations of a kind", most)
		}
		seen := map[string]bool{}
		for _, key := range x.Keys {
			if seen[string(key)] || len(key) == 0 || len(key) > txnLimits.MaxKey {
				t.Errorf("key %q in %q", key, x.Keys)
			}
			seen[string(key)] = true
		}
		for _, c := range x.Conditions {
			_ = x.Keys[c.Key]
		}
		for _, w := range x.Writes {
			if string(x.Keys[w.Key]) != string(w.Command.Key) {
				t.Errorf("a write of %q has the key %q", w.Command.Key, x.Keys[w.Key])
			}
		}
	})
}
