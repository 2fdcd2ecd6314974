package will

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// found takes the wills of rows.
type found struct {
	rows.Visitor
	wills []rows.Will
}

func (f *found) Will(_ uint64, w *rows.Will) error {
	f.wills = append(f.wills, *w)
	return nil
}

// A will has in its row what its client has left, and the client's identity.
func TestRow(t *testing.T) {
	t.Parallel()
	w := New(&mqtt.Will{QoS: 1, Retain: true, Topic: []byte("last"), Payload: []byte("words"), DelayInterval: 5}, "client", nil)
	w.Identity = &access.Identity{Username: "olga"}
	w.Due = 77
	iterate := func(from, to []byte, visit func(key, value []byte) bool) error {
		if key := rows.WillKey(3); string(from) <= string(key) && string(key) < string(to) {
			visit(key, w.Row())
		}
		return nil
	}
	var f found
	if errs := rows.Visit(&f, iterate, func(key []byte, what string) bool { t.Errorf("%q: %s", key, what); return true }); len(errs) > 0 {
		t.Fatal(errs)
	}
	if len(f.wills) != 1 {
		t.Fatalf("%d wills were found", len(f.wills))
	}
	got := f.wills[0]
	if got.QoS != 1 || !got.Retain || got.Due != 77 || got.Delay != 5 || string(got.Message.Body) != "lastwords" || string(got.Message.Topic()) != "last" {
		t.Errorf("%+v", got)
	}
	if len(got.Identity) == 0 {
		t.Error("the row has no identity")
	}
}

// A will is charged with its bytes, and those around them.
func TestMemory(t *testing.T) {
	t.Parallel()
	if got := Memory([]byte("topic"), []byte{1, 2}, []byte("payload")); got != 5+2+7+overhead {
		t.Errorf("%d bytes", got)
	}
}

// A Message Expiry Interval begins when the will is published. One of 0 s is not the
// absence of one: the message has expired when it is published.
func TestExpiryBeginsWithThePublication(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		props mqtt.PublishProps
		want  int64
	}{
		{mqtt.PublishProps{}, 0},
		{mqtt.PublishProps{HasMessageExpiry: true, MessageExpiry: 60}, 60_000},
		{mqtt.PublishProps{HasMessageExpiry: true, MessageExpiry: 0}, 1},
		{mqtt.PublishProps{HasMessageExpiry: true, MessageExpiry: 1<<32 - 1}, (1<<32 - 1) * 1000},
	} {
		w := New(&mqtt.Will{Topic: []byte("last"), Props: test.props}, "client", nil)
		if w.Message.ExpiresAt != test.want {
			t.Errorf("%+v: %d ms, want %d", test.props, w.Message.ExpiresAt, test.want)
		}
	}
}
