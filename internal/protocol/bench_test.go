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

// hotPath is what a request costs here, apart from the rules.
var hotPath = []struct {
	name    string
	payload []byte
}{
	{"GET", resp("GET", "thermostat-17/setPoint")},
	{"SET", resp("SET", "thermostat-17/setPoint", strings.Repeat("v", 64))},
	{"SET NEX PX VER", resp("SET", "lock", "client-1", "NEX", "client-1", "PX", "10000", "VER", "1696374425000:1:StateStore")},
	{"KEYNOTIFY", resp("KEYNOTIFY", "thermostat-17/setPoint")},
	{"LOAD", resp("LOAD", "range/17", "urn:game/4711")},
	{"STORE", resp("STORE", "range/17", strings.Repeat("v", 64), "urn:game/4711", "1696374425000:1:StateStore", "CTX", strings.Repeat("c", 40), "KEEP", "604800000")},
	{"SCAN", resp("SCAN", "thermostat-[0-9]*/setPoint")},
	{"SCAN with values", resp("SCAN", "thermostat-[0-9]*/setPoint", "VALUES")},
}

func TestParseDoesNotAllocate(t *testing.T) {
	for _, tc := range hotPath {
		t.Run(tc.name, func(t *testing.T) {
			var cmd statestore.Command
			allocs := testing.AllocsPerRun(100, func() {
				if f := protocol.Parse(tc.payload, protocol.Current, protocol.DefaultMaxKey, &cmd); f != statestore.None {
					t.Fatal(f)
				}
			})
			if allocs != 0 {
				t.Errorf("Parse allocates %v times", allocs)
			}
		})
	}
}

// A payload that is wrong must not cost memory either, whatever it claims.
func TestParseOfClaimsDoesNotAllocate(t *testing.T) {
	for _, payload := range []string{
		"*99999999999999999999\r\n",
		"*2147483647\r\n$3\r\nGET\r\n",
		"*2\r\n$3\r\nGET\r\n$9223372036854775807\r\nk\r\n",
	} {
		b := []byte(payload)
		var cmd statestore.Command
		allocs := testing.AllocsPerRun(100, func() {
			if f := protocol.Parse(b, protocol.Current, protocol.DefaultMaxKey, &cmd); f != statestore.Syntax {
				t.Fatal(f)
			}
		})
		if allocs != 0 {
			t.Errorf("Parse(%q) allocates %v times", payload, allocs)
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 4096)
	value := []byte(strings.Repeat("v", 64))
	replies := []statestore.Reply{
		{Kind: statestore.OK},
		{Kind: statestore.Value, Value: value},
		{Kind: statestore.Count, Count: 1},
		{Kind: statestore.Loaded, Count: 1, Value: value, Context: value},
		{Kind: statestore.Error, Fault: statestore.TokenTooLow},
	}
	event := statestore.Event{Kind: statestore.KeySet, Value: value}
	key := []byte("thermostat-17/setPoint")
	args := [][]byte{[]byte("GET"), key}
	allocs := testing.AllocsPerRun(100, func() {
		for i := range replies {
			protocol.AppendReply(buf, protocol.SDK, &replies[i])
		}
		protocol.AppendEvent(buf, protocol.SDK, &event)
		protocol.AppendNotifyTopic(buf, "client-id1", key)
		protocol.AppendCommand(buf, args...)
	})
	if allocs != 0 {
		t.Errorf("appending allocates %v times", allocs)
	}
}

func TestParseStampDoesNotAllocate(t *testing.T) {
	text := []byte("001696374425000:00001:StateStore")
	allocs := testing.AllocsPerRun(100, func() {
		if s := protocol.ParseStamp(text, true); s.State != statestore.Given {
			t.Fatal(s)
		}
	})
	if allocs != 0 {
		t.Errorf("ParseStamp allocates %v times", allocs)
	}
}

func BenchmarkParse(b *testing.B) {
	for _, tc := range hotPath {
		b.Run(tc.name, func(b *testing.B) {
			var cmd statestore.Command
			b.ReportAllocs()
			b.SetBytes(int64(len(tc.payload)))
			for b.Loop() {
				protocol.Parse(tc.payload, protocol.Current, protocol.DefaultMaxKey, &cmd)
			}
		})
	}
}

// A transaction of a processor: 24 messages, each with its state and one output.
func BenchmarkParseTxn(b *testing.B) {
	words := []string{"TXN"}
	const messages = 24
	for i := range messages {
		key, id := fmt.Sprint("bank/deposits/", i), fmt.Sprint("event:4:loadmi5k2j4x1", i)
		words = append(words, "IF", key, "VER", "1696374425000:00001:StateStore",
			"ONCE", key, id, "KEEP", "605100000", "DIGEST", "123456789",
			"SET", key, `{"Balance":12,"Deposits":12}`,
			"PUBLISH", fmt.Sprint("balances/", i), `{"Balance":12,"Deposits":12}`, "TYPE", "application/json", "FORMAT", "1",
			"USER", "specversion", "1.0", "USER", "id", "2b6f3c1e-5d0c-5a3f-9d3e-2f1b7c6a5e4d", "USER", "source", "bank/deposits",
			"USER", "type", "deposits", "USER", "time", "2026-11-24T10:11:12.123456789Z",
			"SETTLE", fmt.Sprint(1000+i))
	}
	payload := resp(words...)
	limits := protocol.TxnLimits{MaxKey: protocol.DefaultMaxKey, MaxOperations: protocol.DefaultMaxTxnOperations}
	var t txn.Transaction
	b.ReportAllocs()
	for b.Loop() {
		t.Reset()
		if f := protocol.ParseTxn(payload, limits, &t); f != (protocol.TxnFault{}) {
			b.Fatal(f)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*messages), "ns/message")
}

func BenchmarkAppendReply(b *testing.B) {
	reply := statestore.Reply{
		Kind:    statestore.Value,
		Value:   []byte(strings.Repeat("v", 64)),
		Version: hlc.Timestamp{Wall: 1696374425000, Counter: 1, Node: "StateStore"},
	}
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		protocol.AppendReply(buf, protocol.SDK, &reply)
	}
}

func BenchmarkParseReply(b *testing.B) {
	payload := []byte("$5\r\nvalue\r\n")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := protocol.ParseReply(payload); err != nil {
			b.Fatal(err)
		}
	}
}
