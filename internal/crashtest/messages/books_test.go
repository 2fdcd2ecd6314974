package messages

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// delivery is a PUBLISH that a subscriber gets, on its n-th connection.
type delivery struct {
	time int
	id   uint16
	seq  uint64
	dup  bool
	qos  byte
}

// What came to a group twice at QoS 2, or to none of its members, is found out.
func TestGroupKeepsBooks(t *testing.T) {
	t.Parallel()
	p := &Publisher{topic: messageTopic(0), qos: 2, settledAt: 4}
	source := func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
	members := NewGroup(2, []*Publisher{p}, source)
	one, two := members[0], members[1]
	one.hand(message{0, 1})
	two.hand(message{0, 3})
	two.hand(message{0, 1})
	if one.complete() {
		t.Error("the group counts as complete without its last messages")
	}
	one.hand(message{0, 4})
	for _, m := range members {
		m.Balance()
	}
	if one.Faults.Delivered+two.Faults.Delivered != 3 || two.Faults.Duplicates2 != 1 || one.Faults.Lost != 1 {
		t.Errorf("the records say %+v and %+v, want 3 delivered, 1 duplicate, 1 lost", one.Faults, two.Faults)
	}
}

// A will that was published twice, or never, is found out.
func TestWillsKeepBooks(t *testing.T) {
	t.Parallel()
	source := func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
	testators, heir := NewTestators(2, source)
	heir.book.(*wills).owe(testators[0].as.number, 1)
	heir.book.(*wills).owe(testators[1].as.number, 1)
	heir.hand(message{0, 1})
	heir.hand(message{0, 1})
	if heir.complete() {
		t.Error("the wills count as complete without the second")
	}
	heir.Balance()
	if heir.Faults.Delivered != 1 || heir.Faults.Duplicates2 != 1 || heir.Faults.Lost != 1 {
		t.Errorf("the records say %+v, want 1 delivered, 1 duplicate, 1 lost", heir.Faults)
	}
}

func TestSubscriberKeepsBooks(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		came []delivery
		want Faults
	}{
		{"all in order", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {1, 3, 3, false, 2}}, Faults{Delivered: 3}},
		{"one never came", []delivery{{1, 1, 1, false, 2}, {1, 3, 3, false, 2}}, Faults{Delivered: 2, Lost: 1}},
		{"the last never came", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}}, Faults{Delivered: 2, Lost: 1}},
		{"two changed places", []delivery{{1, 1, 1, false, 2}, {1, 2, 3, false, 2}, {1, 3, 2, false, 2}}, Faults{Delivered: 3, OutOfOrder: 1}},
		{"one came twice", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {1, 3, 2, false, 2}, {1, 4, 3, false, 2}}, Faults{Delivered: 3, Duplicates2: 1}},
		{"one came twice at QoS 1", []delivery{{1, 1, 1, false, 1}, {1, 2, 2, false, 1}, {1, 3, 2, false, 1}, {1, 4, 3, false, 1}}, Faults{Delivered: 3, Duplicates: 1}},
		{"redelivered", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {2, 1, 1, true, 2}, {2, 2, 2, true, 2}, {2, 3, 3, false, 2}}, Faults{Delivered: 3}},
		{"redelivered unmarked", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {2, 2, 2, false, 2}, {2, 3, 3, false, 2}}, Faults{Delivered: 3, WithoutDup: 1}},
		{"redelivered out of order", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {2, 2, 2, true, 2}, {2, 1, 1, true, 2}, {2, 3, 3, false, 2}}, Faults{Delivered: 3, OutOfOrder: 1}},
		{"redelivered on the same connection", []delivery{{1, 1, 1, false, 2}, {1, 1, 1, true, 2}, {1, 2, 2, false, 2}, {1, 3, 3, false, 2}}, Faults{Delivered: 3, OutOfOrder: 1}},
		{"over Receive Maximum", []delivery{{1, 1, 1, false, 2}, {1, 2, 2, false, 2}, {1, 3, 3, false, 2}, {1, 4, 4, false, 2}, {1, 5, 5, false, 2}}, Faults{Delivered: 5, OverReceiving: 1}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := &Publisher{topic: messageTopic(0), qos: c.came[0].qos, next: 3, settledAt: 3}
			s := NewSubscriber("s", p.qos, false, nil, []*Publisher{p})
			var conn *connection
			for _, d := range c.came {
				if d.time != s.times {
					s.times = d.time
					conn = &connection{receiveMax: 4, inflight: map[uint16]bool{}}
				}
				if err := s.message(conn, d.packet()); err != nil {
					t.Fatal(err)
				}
			}
			s.Balance()
			if s.Faults != c.want {
				t.Errorf("got %+v, want %+v: %q", s.Faults, c.want, s.Examples)
			}
		})
	}
}

func (d delivery) packet() lives.Packet {
	b := mqtt.AppendDelivery(nil, mqtt.V5, &mqtt.Delivery{
		QoS: d.qos, Dup: d.dup, PacketID: d.id, Topic: []byte(messageTopic(0)),
		Payload: message{seq: d.seq}.payload(nil, 0),
	})
	header, body, _, _, err := mqtt.Split(b, 0)
	if err != nil {
		panic(err)
	}
	return lives.Packet{Type: mqtt.TypeOf(header), Header: header, Body: body}
}

func TestPayloadNamesItsMessage(t *testing.T) {
	t.Parallel()
	good := message{3, 77}.payload(nil, 0)
	if m, err := parseMessage(good); err != nil || m != (message{3, 77}) {
		t.Errorf("got %v, %v", m, err)
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1
		if m, err := parseMessage(bad); err == nil {
			t.Errorf("with byte %d changed it is %v", i, m)
		}
	}
	if _, err := parseMessage(good[:10]); err == nil {
		t.Error("half of it is taken for whole")
	}
}
