package conformance

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// Transactions of many connections name the same keys and the same retained topics in
// opposite orders, with ONCE and conditions that look up messages. All of them are answered,
// each is carried out as a whole, and a GET of another client is answered meanwhile.
func TestTransactionsInOppositeOrders(t *testing.T) {
	t.Parallel()
	n := start(t)
	const clients, rounds, keys = 8, 40, 6
	var running sync.WaitGroup
	for i := range clients {
		r := n.requester(mqtttest.ClientID(fmt.Sprint("writer", i)))
		running.Go(func() {
			for round := range rounds {
				value := fmt.Sprintf("%d/%d", i, round)
				var text strings.Builder
				for at := range keys {
					k := at
					if (i+round)%2 == 1 {
						k = keys - 1 - at
					}
					fmt.Fprintf(&text, "SET k%d %s PUBLISH t%d %s RETAIN ONCE k%d %s ", k, value, k, value, (k+i)%keys, value)
				}
				if got := r.txn(text.String()); !done(got) {
					t.Errorf("%s: %q", value, got)
				}
			}
		})
	}
	other := n.requester()
	for range rounds {
		other.do("GET", "k0") // is answered
	}
	running.Wait()
	last := other.do("GET", "k0").Payload
	retained := n.connect()
	for k := range keys {
		other.want(last, "GET", fmt.Sprint("k", k))
		retained.Subscribe(fmt.Sprint("t", k), 0)
		if m := retained.Receive(); blob(m.Payload) != last {
			t.Errorf("t%d has %q, and the keys have %q", k, m.Payload, last)
		}
	}
}

// A client sends a transaction that settles a message, and its session is taken over at once.
// Either the transaction was carried out and the message does not come again, or neither.
func TestTakeoverDuringATransactionThatSettles(t *testing.T) {
	t.Parallel()
	n := start(t, patientTakeover)
	from, check := n.connect(), n.requester()
	for round := range 20 {
		id, key := fmt.Sprint("worker", round), fmt.Sprint("done", round)
		c := n.connect(mqtttest.Persistent(id), mqtttest.HoldAcks())
		r := requests(t, c)
		c.Subscribe("in/"+id, 1)
		from.Publish(message{Topic: "in/" + id, Payload: "x", QoS: 1})
		m := c.Receive()
		topic, correlation := r.responses, "c"
		c.SendPublish(mqtttest.Message{
			Topic: r.topic, QoS: 1, Payload: command("TXN", "SETTLE", fmt.Sprint(m.PacketID), "SET", key, "v"),
			ResponseTopic: &topic, CorrelationData: &correlation, User: [][2]string{{r.timestamp, now()}},
		})
		again := n.connect(mqtttest.Persistent(id), mqtttest.Resume(), mqtttest.HoldAcks())
		redelivered := false
		for _, m := range again.Collect() {
			redelivered = redelivered || m.Topic == "in/"+id
		}
		carriedOut := check.do("GET", key).Payload == blob("v")
		if carriedOut == redelivered {
			t.Errorf("round %d: carried out %v, delivered again %v", round, carriedOut, redelivered)
		}
	}
}

// What an operation names may have any length that a packet has room for, and any number: each
// is served at its bound and refused above it, with the error of the operation.
func TestTransactionExtremes(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxPacketSize = 256 << 10 })
	r, other := n.requester(), n.requester()
	syntax := operationFailure(2, "syntax error")
	malformed := operationFailure(2, "malformed timestamp")
	long := func(n int) string { return strings.Repeat("x", n) }
	stamp := func(node int) string { return "1:0:" + long(node) }
	for name, tc := range map[string]struct {
		words []string
		want  string // of the error; empty: done
	}{
		"a message ID of 1 byte":           {[]string{"ONCE", "k", "x"}, ""},
		"a message ID at its bound":        {[]string{"ONCE", "k", long(1024)}, ""},
		"a message ID above its bound":     {[]string{"ONCE", "k", long(1025)}, syntax},
		"an empty message ID":              {[]string{"ONCE", "k", ""}, syntax},
		"a huge message ID":                {[]string{"ONCE", "k", long(200 << 10)}, syntax},
		"VER ^ with nothing":               {[]string{"IF", "k", "VER", "^"}, syntax},
		"VER ^ above its bound":            {[]string{"IF", "k", "VER", "^" + long(1025)}, syntax},
		"KEEP 0":                           {[]string{"ONCE", "k", "keep0", "KEEP", "0"}, syntax},
		"KEEP 1":                           {[]string{"ONCE", "k", "keep1", "KEEP", "1"}, ""},
		"KEEP beyond the maximum":          {[]string{"ONCE", "k", "huge", "KEEP", "9223372036854775807"}, ""},
		"KEEP beyond 64 bits":              {[]string{"ONCE", "k", "huger", "KEEP", "99999999999999999999"}, syntax},
		"KEEP that is negative":            {[]string{"ONCE", "k", "minus", "KEEP", "-1"}, syntax},
		"a digest at its bound":            {[]string{"ONCE", "k", "digest", "DIGEST", long(64)}, ""},
		"a digest above its bound":         {[]string{"ONCE", "k", "digest1", "DIGEST", long(65)}, syntax},
		"an empty digest":                  {[]string{"ONCE", "k", "digest2", "DIGEST", ""}, syntax},
		"a context that fills a packet":    {[]string{"ONCE", "k", "context", "CTX", long(200 << 10)}, ""},
		"a value that fills a packet":      {[]string{"SET", "large", long(200 << 10)}, ""},
		"a key at its bound":               {[]string{"DEL", long(64 << 10)}, ""},
		"a key above its bound":            {[]string{"DEL", long(64<<10 + 1)}, syntax},
		"a topic that is too long":         {[]string{"PUBLISH", long(65_536), "x"}, operationFailure(2, "the topic name is invalid")},
		"a message that fills a packet":    {[]string{"PUBLISH", "out", long(200 << 10)}, ""},
		"a token at its bound":             {[]string{"SET", "token", "v", "FT", stamp(256)}, ""},
		"a token above its bound":          {[]string{"SET", "token1", "v", "FT", stamp(257)}, malformed},
		"a token of 17,000 bytes":          {[]string{"SET", "token1", "v", "FT", stamp(17_000)}, malformed},
		"a token that fills a packet":      {[]string{"SET", "token1", "v", "FT", stamp(200 << 10)}, malformed},
		"a token of DEL at its bound":      {[]string{"DEL", "token2", "FT", stamp(256)}, ""},
		"a token of DEL above its bound":   {[]string{"DEL", "token2", "FT", stamp(257)}, malformed},
		"a token of DEL of 17,000 bytes":   {[]string{"DEL", "token2", "FT", stamp(17_000)}, malformed},
		"a version above its bound":        {[]string{"IF", "k", "VER", stamp(257)}, malformed},
		"a version of 17,000 bytes":        {[]string{"IF", "k", "VER", stamp(17_000)}, malformed},
		"a packet identifier of 0":         {[]string{"SETTLE", "0"}, operationFailure(2, notUnderWay)},
		"a packet identifier above all":    {[]string{"SETTLE", "65536"}, syntax},
		"a packet identifier of 20 digits": {[]string{"SETTLE", "18446744073709551617"}, syntax},
		"an operation without its words":   {[]string{"SET"}, operationFailure(2, "wrong number of arguments")},
	} {
		key := "witness of " + name
		got := r.do(append([]string{"TXN", "SET", key, "v"}, tc.words...)...).Payload
		if tc.want == "" && !done(got) || tc.want != "" && got != tc.want {
			t.Errorf("%s: %.100q, want %q", name, got, tc.want)
		}
		want := nilBlob
		if tc.want == "" {
			want = blob("v")
		}
		other.want(want, "GET", key)
	}
	// A packet that is too large ends its connection, and no other.
	r.client.SendPublish(message{Topic: r.topic, QoS: 1, Payload: command("TXN", "SET", "k", long(256<<10))})
	r.client.AwaitDisconnect(mqtt.PacketTooLarge)
	other.want(nilBlob, "GET", "k")
}

// The messages of a transaction make as many deliveries as they may, 100,000, and one more is
// refused. Others are answered meanwhile, and the queues have all of them, or none.
func TestTransactionWithAHundredThousandDeliveries(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out what makes 100,000 deliveries; a run without -short has it")
	}
	t.Parallel()
	sessions, messages, most := 800, 125, 100_000
	if raceDetector {
		sessions, most = 80, 10_000
	}
	n := start(t, func(c *server.Config) { c.Limits.MaxTxnDeliveries = most })
	for i := range sessions {
		c := n.connect(mqtttest.Persistent(fmt.Sprint("away", i)))
		c.Subscribe("out", 1)
		c.Disconnect()
	}
	r, other := n.requester(), n.requester()
	all := strings.Repeat("PUBLISH out m ", messages)
	answered := make(chan string, 1)
	go func() { answered <- r.txn(all + "SET k 1") }()
	for waiting := true; waiting; {
		other.do("GET", "k") // is answered
		select {
		case got := <-answered:
			if !done(got) {
				t.Errorf("at the bound: %q", got)
			}
			waiting = false
		default:
		}
	}
	extra := n.connect(mqtttest.Persistent("one more"))
	extra.Subscribe("out", 1)
	tooMuch := 1 + most/(sessions+1) // the first message that does not fit
	if got := r.txn(all + "SET k 2"); got != operationFailure(tooMuch, "the quota has been exceeded") {
		t.Errorf("beyond it: %q", got)
	}
	other.want(blob("1"), "GET", "k")
	extra.Quiet()
	for _, i := range []int{0, sessions - 1} {
		c := n.connect(mqtttest.Persistent(fmt.Sprint("away", i)), mqtttest.Resume())
		c.ReceiveN(messages)
		c.Quiet()
	}
}

// Transactions that fill the memory or the store are refused as a whole, and what they would
// have held is free again: the next one finds room as soon as keys are deleted.
func TestTransactionsAtTheBoundOfMemory(t *testing.T) {
	t.Parallel()
	const maximum = 128 << 20
	n := start(t, func(c *server.Config) { c.MaxMemory, c.MaxStoreBytes = maximum, 1<<30 })
	r, other := n.requester(), n.requester()
	value := strings.Repeat("v", 1<<20)
	stored := 0
	var refused message
	for ; stored < 2*maximum>>20; stored++ {
		refused = r.do("TXN", "SET", fmt.Sprint("a", stored), value, "SET", fmt.Sprint("b", stored), value, "PUBLISH", "full", "x")
		if !done(refused.Payload) {
			break
		}
	}
	if quota, _ := refused.UserProp("holdfast-quota"); quota != "max-memory" {
		t.Fatalf("after %d transactions: %.100q, quota %q", stored, refused.Payload, quota)
	}
	for _, key := range []string{"a", "b"} {
		other.want(nilBlob, "GET", fmt.Sprint(key, stored))
	}
	if got := r.txn("DEL a0 DEL b0 DEL a1 DEL b1 DEL a2 DEL b2"); !done(got) {
		t.Errorf("a transaction that deletes: %q", got)
	}
	if got := r.do("TXN", "SET", "a0", value, "SET", "b0", value); !done(got.Payload) {
		t.Errorf("with room again: %.100q", got.Payload)
	}
}
