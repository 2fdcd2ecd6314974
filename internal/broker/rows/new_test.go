package rows

import (
	"testing"
	"time"
)

// Only the first row of a message says that it is new: what takes its place does not, nor does any
// row whose key another one had before.
func TestIsNew(t *testing.T) {
	t.Parallel()
	queued := Queued{QoS: 1, MessageQoS: 2}
	identified, released, elsewhere := queued, queued, queued
	identified.ID, released.Released, elsewhere.Number = 7, true, 9
	message := func(q Queued) []byte { return append(AppendMessage(q.Append(nil), 0, 1, 0), "topic"...) }
	for _, c := range []struct {
		name       string
		key, value []byte
		want       bool
	}{
		{"a message in a queue", QueueKey(1, 2), message(queued), true},
		{"a message in a queue that a p row holds", QueueKey(1, 2), elsewhere.Append(nil), true},
		{"a message of several queues", PayloadKey(9), append(AppendMessage(AppendPayload(nil), 0, 1, 0), "topic"...), true},
		{"a message with a packet identifier", QueueKey(1, 2), message(identified), false},
		{"a message that is released", QueueKey(1, 2), released.Append(nil), false},
		{"a publish received", ReceivedKey(1, 2), ReceivedRow(), false},
		{"a session", SessionKey("client"), (&Session{SID: 1}).Row(), false},
		{"a timer", TimerKey(time.Now().UnixMilli(), 1), message(queued), false},
		{"a row of the state store", []byte("k|q|"), message(queued), false},
		{"no value", QueueKey(1, 2), nil, false},
		{"no key", nil, message(queued), false},
	} {
		if got := IsNew(c.key, c.value); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
