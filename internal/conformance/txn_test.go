package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// operationFailure is the error about one operation of a TXN.
func operationFailure(op int, text string) string {
	return failure(fmt.Sprintf("operation %d: %s", op, text))
}

// txn is a TXN of words that are separated by spaces.
func (r *requester) txn(text string) string {
	return string(r.do(append([]string{"TXN"}, strings.Fields(text)...)...).Payload)
}

// done says whether the reply is that a TXN was carried out.
func done(reply string) bool { return strings.HasPrefix(reply, "*2\r\n:1\r\n") }

// Protocol, section 12: each operation needs the permission that it would need by itself,
// and one that is denied refuses the whole.
func TestPolicyOfTransactions(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, "rules:"+everything("admin")+machines)
	admin := n.requester(as("admin"))
	press := &requester{t: t, client: n.connect(as("press"), mqtttest.ClientID("p1")), topic: invokeTopic, timestamp: "__ts", responses: "answers/p1"}
	press.Subscribe("answers/p1", 1)
	admin.txn("SET shared s SET inbox i SET lathe:1 l")
	for _, tc := range []struct {
		text string
		op   int // denied; 0: none
	}{
		{"IF shared EXISTS SET press:1 a", 0},
		{"SET inbox x SET press:1 b", 0},
		{"SET press:1 c SET shared x", 2},
		{"SET press:1 c DEL shared", 2},
		{"SET press:1 c IF inbox EXISTS", 2},
		{"IF lathe:1 EXISTS SET shared x", 1},
		{"ONCE shared m SET press:1 c", 1},
		{"ONCE inbox m SET press:1 c", 1},
		{"ONCE press:1 m SET press:1 c", 0},
	} {
		got := press.txn(tc.text)
		if tc.op == 0 && !done(got) || tc.op != 0 && got != operationFailure(tc.op, "not authorized") {
			t.Errorf("TXN %s: %q, want operation %d denied", tc.text, got, tc.op)
		}
	}
	admin.want(blob("s"), "GET", "shared")
	press.want(blob("c"), "GET", "press:1")
}

func TestTransactionBounds(t *testing.T) {
	t.Parallel()
	sets := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "SET key%d v ", i)
		}
		return b.String()
	}
	for _, tc := range []struct{ set, bound int }{{0, 128}, {3, 3}} {
		n := start(t, func(c *server.Config) { c.MaxTxnOperations = tc.set })
		r := n.requester()
		if got := r.txn(sets(tc.bound)); !done(got) {
			t.Errorf("%d operations: %.100q", tc.bound, got)
		}
		m := r.do(append([]string{"TXN"}, strings.Fields(sets(tc.bound+1))...)...)
		if got := string(m.Payload); got != operationFailure(tc.bound+1, "the quota has been exceeded") {
			t.Errorf("%d operations: %.100q", tc.bound+1, got)
		}
		if quota, _ := m.UserProp("holdfast-quota"); quota != "max-txn-operations" {
			t.Errorf("the quota is %q", quota)
		}
		r.want(nilBlob, "GET", fmt.Sprintf("key%d", tc.bound))
	}
	// What may be refused in the middle of the store's room changes nothing.
	n := start(t, func(c *server.Config) { c.MaxKeys = 2 })
	r := n.requester()
	if got := r.txn("SET a 1 SET b 1 SET c 1"); got != operationFailure(3, "the quota has been exceeded") {
		t.Errorf("beyond the bound of keys: %q", got)
	}
	if got := r.txn("SET a 1 SET b 1"); !done(got) {
		t.Errorf("at the bound of keys: %q", got)
	}
}

// The value of a condition that failed is left out if the client cannot take it.
func TestTransactionFitsTheClient(t *testing.T) {
	t.Parallel()
	n := start(t)
	n.requester().want(ok, "SET", "k", strings.Repeat("v", 4000))
	small := n.requester(mqtttest.MaximumPacketSize(2000))
	got := small.txn("IF k ABSENT SET k x")
	if !strings.HasPrefix(got, "*4\r\n:-1\r\n:1\r\n$-1\r\n$") || strings.HasSuffix(got, "$-1\r\n") {
		t.Errorf("got %q, want no value and a version", got)
	}
}

// A transaction works in the preview dialect, and in the documented wire form.
func TestTransactionInThePreview(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *server.Config) { c.Wire = "documented" }).requester().preview()
	if got := r.txn("IF a ABSENT SET a 1"); !done(got) {
		t.Errorf("got %q", got)
	}
	if got := r.txn("IF a ABSENT SET a 1"); !strings.HasPrefix(got, "*4\r\n:-1\r\n:1\r\n$1\r\n1\r\n") {
		t.Errorf("got %q", got)
	}
}

// An ID that another message has is refused by the digests of both, also after a restart, and
// by what DONE has left; without a digest on either side nothing is compared.
func TestTransactionOfAnotherMessageWithTheSameID(t *testing.T) {
	t.Parallel()
	const other = "the message is remembered with another digest"
	n := start(t)
	r := n.requester()
	if got := r.txn("ONCE k m DIGEST one SET a 1"); !done(got) {
		t.Fatalf("the first: %q", got)
	}
	r.txn("ONCE k plain SET a 2")
	r.want("+OK\r\n", "STORE", "k2", "state", "stored", "-", "CTX", "captured")
	alreadyDone := func(words string) {
		t.Helper()
		if got := r.txn(words); !strings.HasPrefix(got, "*2\r\n:0\r\n") {
			t.Errorf("%s: %q, want it done already", words, got)
		}
	}
	refused := func(words string) {
		t.Helper()
		if got := r.txn(words); got != operationFailure(2, other) {
			t.Errorf("%s: %q, want it refused", words, got)
		}
		r.want(blob("2"), "GET", "a")
	}
	if got := r.do("TXN", "ONCE", "k", "empty", "CTX", "").Payload; !done(got) {
		t.Fatalf("with an empty context: %q", got)
	}
	alreadyDone("SET a 3 ONCE k2 stored DIGEST one") // a STORE leaves no digest
	r.want(":1\r\n", "DONE", "k2", "stored", "CTX", "two")
	for range 2 {
		refused("SET a 3 ONCE k m DIGEST two")
		refused("SET a 3 ONCE k m DIGEST on")
		refused("SET a 3 ONCE k2 stored DIGEST one")
		refused("SET a 3 ONCE k empty DIGEST one") // an empty context is one
		alreadyDone("SET a 3 ONCE k m DIGEST one")
		alreadyDone("SET a 3 ONCE k m")
		alreadyDone("SET a 3 ONCE k plain DIGEST one")
		alreadyDone("SET a 3 ONCE k2 stored DIGEST two")
		n.Restart()
		r = n.requester()
	}
}
