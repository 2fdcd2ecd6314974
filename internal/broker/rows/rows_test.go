package rows

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// message is a message in a row, and how it is written.
func message(topic, props, payload string) (Message, []byte) {
	m := Message{ExpiresAt: 1_700_000_000_123, Body: []byte(topic + props + payload), TopicLen: len(topic), PropsLen: len(props)}
	return m, append(AppendMessage(nil, m.ExpiresAt, m.TopicLen, m.PropsLen), m.Body...)
}

type row struct{ key, value []byte }

// table is rows in the order of their keys.
type table []row

func (t table) iterate(from, to []byte, visit func(key, value []byte) bool) error {
	for _, r := range t {
		if bytes.Compare(r.key, from) >= 0 && bytes.Compare(r.key, to) < 0 && !visit(r.key, r.value) {
			break
		}
	}
	return nil
}

// collector keeps what it is given.
type collector struct{ all []any }

func (c *collector) add(parts ...any) error { c.all = append(c.all, parts...); return nil }

func (c *collector) Session(client string, s Session) error        { return c.add(client, s) }
func (c *collector) Subscription(sid uint64, s Subscription) error { return c.add(sid, s) }
func (c *collector) Group(group string, sid uint64) error          { return c.add(group, sid) }
func (c *collector) Payload(n uint64, m Message) error             { return c.add(n, m) }
func (c *collector) Queued(sid, seq uint64, q *Queued) error       { return c.add(sid, seq, *q) }
func (c *collector) Received(sid uint64, id uint16) error          { return c.add(sid, id) }
func (c *collector) Owed(sid, n uint64, o Owed) error              { return c.add(sid, n, o) }
func (c *collector) Retained(topic string, r *Retained) error      { return c.add(topic, *r) }
func (c *collector) Will(n uint64, w *Will) error                  { return c.add(n, *w) }

// What is written is what is read, of each kind, and a row that is cut short anywhere is
// a bad row of that kind and stops nothing else.
func TestRowsReadBack(t *testing.T) {
	t.Parallel()
	m, bytesOfM := message("plant/7", "\x01\x01", "21.5")
	session := Session{SID: 7, Expiry: 3600, Away: 1_700_000_000_000, Sent: 5003, QueueFull: 2}
	ownedSession := Session{SID: 8, Expiry: 3600, Sent: 5003, Owner: "user:alice"}
	sub := Subscription{Filter: "plant/+", QoS: 2, NoLocal: true, RetainAsPublished: true, ID: 9}
	queued := Queued{QoS: 1, Retain: true, MessageQoS: 2, MessageRetain: true, ID: 77, SubIDs: []uint32{9, 300}, Shared: "$share/g/plant/+", Message: m}
	elsewhere := Queued{QoS: 2, MessageQoS: 2, Number: 12}
	released := Queued{QoS: 2, Released: true, ID: 5}
	owed := Owed{Filter: "plant/#", Since: 40, Routed: []uint64{38, 39}, After: "plant/3", Again: 1}
	retained := Retained{QoS: 1, Stamp: 41, Publisher: "sensor", Message: m}
	will := Will{QoS: 1, Retain: true, Due: 1_700_000_001_000, Delay: 30, Message: m}
	owned := will
	owned.Identity = []byte(`{"Username":"sensor"}`)
	for _, c := range []struct {
		name   string
		key    []byte
		value  []byte
		want   []any
		prefix int // bytes without which the row is bad
	}{
		{"session", SessionKey("c"), session.Row(), []any{"c", session}, 30},
		{"session with an owner", SessionKey("d"), ownedSession.Row(), []any{"d", ownedSession}, 31},
		{"subscription", SubscriptionKey(7, "plant/+"), sub.Row(), []any{uint64(7), sub}, 6},
		{"group", GroupKey("g/plant/+"), GroupRow(8), []any{"g/plant/+", uint64(8)}, 9},
		{"payload", PayloadKey(12), append(AppendPayload(nil), bytesOfM...), []any{uint64(12), m}, 11 + m.TopicLen + m.PropsLen},
		{"queued", QueueKey(7, 3), append(queued.Append(nil), bytesOfM...), []any{uint64(7), uint64(3), queued}, 4},
		{"queued elsewhere", QueueKey(7, 4), elsewhere.Append(nil), []any{uint64(7), uint64(4), elsewhere}, 12},
		{"released", QueueKey(7, 5), released.Append(nil), []any{uint64(7), uint64(5), released}, 4},
		{"received", ReceivedKey(7, 11), ReceivedRow(), []any{uint64(7), uint16(11)}, 0},
		{"owed", OwedKey(7, 13), owed.Row(), []any{uint64(7), uint64(13), owed}, 10},
		{"retained", RetainedKey([]byte("plant/7")), append(retained.Append(nil), bytesOfM...), []any{"plant/7", retained}, 20},
		{"will of an identity", WillKey(7), append(owned.Row(), bytesOfM...), []any{uint64(7), owned}, 20},
		{"will", WillKey(7), append(will.Row(), bytesOfM...), []any{uint64(7), will}, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got collector
			bad := func(_ []byte, what string) bool { t.Error(what); return true }
			if errs := Visit(&got, table{{c.key, c.value}}.iterate, bad); len(errs) > 0 || !reflect.DeepEqual(got.all, c.want) {
				t.Errorf("got %v, %v, want %v", got.all, errs, c.want)
			}
			for n := range c.prefix {
				reports := 0
				other := row{WillKey(99), append(will.Row(), bytesOfM...)}
				rows := table{{c.key, c.value[:n]}, other}
				slices.SortFunc(rows, func(a, b row) int { return bytes.Compare(a.key, b.key) })
				got = collector{}
				Visit(&got, rows.iterate, func(key []byte, what string) bool {
					if !bytes.Equal(key, c.key) || !strings.Contains(what, "unknown form") {
						t.Errorf("%q reported of %q", what, key)
					}
					reports++
					return true
				})
				if reports != 1 || !reflect.DeepEqual(got.all, []any{uint64(99), will}) {
					t.Errorf("cut after %d bytes: %d reports, the other row is %v", n, reports, got.all)
				}
			}
		})
	}
}

// Rows that earlier versions wrote are read: a session of version 1 does not say what
// was sent while its client was connected.
func TestEarlierFormsOfRows(t *testing.T) {
	t.Parallel()
	current := Session{SID: 7, Expiry: 3600, Sent: 5003}
	old := current.Row()[:29]
	old[0] = 1
	var got collector
	m, bytesOfM := message("t", "", "x")
	Visit(&got, table{
		{SessionKey("c"), old},
		{RetainedKey([]byte("t")), append([]byte{1, 2}, bytesOfM...)},
	}.iterate, func(_ []byte, what string) bool { t.Error(what); return true })
	want := []any{"c", Session{SID: 7, Expiry: 3600, Sent: UnknownSent}, "t", Retained{QoS: 2, Message: m}}
	if !reflect.DeepEqual(got.all, want) {
		t.Errorf("got %v, want %v", got.all, want)
	}
}

// The bytes of each form are what earlier versions of the program read.
func TestBytesOfRows(t *testing.T) {
	t.Parallel()
	queued := Queued{QoS: 1, MessageQoS: 2, MessageRetain: true, SubIDs: []uint32{300}, Shared: "s"}
	for _, c := range []struct{ name, got, want string }{
		{"key", string(QueueKey(1, 2)), "q|\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02"},
		{"queued", string(queued.Append(nil)), "\x01\x29\x01\xac\x02\x01s"},
		{"message", string(AppendMessage(nil, 5, 1, 2)), "\x00\x00\x00\x00\x00\x00\x00\x05\x01\x02"},
		{"subscription", string((&Subscription{QoS: 1, NoLocal: true, ID: 3}).Row()), "\x01\x05\x00\x00\x00\x03"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.name, c.got, c.want)
		}
	}
}
