package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/delayed"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/routing"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/settle"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Outbox is the messages of a Handler's transaction; see routing.Outbox.
type Outbox = routing.Outbox

// The reasons for which an Outbox can't be prepared.
const (
	QueueFull    = routing.QueueFull
	RetainedFull = routing.RetainedFull
	DiskLow      = routing.DiskLow
	NotUnderWay  = routing.NotUnderWay

	TooManyDeliveries = routing.TooManyDeliveries

	TimersFull         = routing.TimersFull
	TimersOfClientFull = routing.TimersOfClientFull
	TimerTwice         = routing.TimerTwice
	TimerUnreadable    = routing.TimerUnreadable
)

// Reserved says whether no client may publish to the topic within a transaction: it is a
// Handler's, or only the server publishes to it.
func (c *Conn) Reserved(topic []byte) bool {
	return c.b.reservedTopics.Handled(topic) || c.b.reservedTopics.Protected(topic)
}

// Timers keeps what is to be published later, for a Handler that lists and cancels timers.
func (c *Conn) Timers() *delayed.Store { return c.b.Timers }

// Timed is what a client publishes, and when.
type Timed struct {
	mqtt.Publish
	When delay.Request
}

// NewOutbox takes what the client publishes within a transaction, each of which JudgeTimed has
// allowed, and the packet identifiers of the deliveries to it that the transaction
// acknowledges, and the IDs of timers that it cancels, by which a refusal names them behind the
// publishes. The bytes are used until it is prepared. Within Handle.
func (c *Conn) NewOutbox(t *session.Turn, publishes []Timed, settles []uint16, cancels [][]byte) *Outbox {
	messages, places := make([]message.Outgoing, 0, len(publishes)), make([]int, 0, len(publishes)+len(cancels))
	timers, later := []delayed.Timer(nil), []int(nil)
	for i := range publishes {
		if p := &publishes[i]; p.When.Asked {
			timers, later = append(timers, c.timer(&p.Publish, p.When)), append(later, i)
		} else {
			messages, places = append(messages, c.outgoing(&p.Publish)), append(places, i)
		}
	}
	if q := access.QuotaOf(c.b.may, c.Identity()); q.Limited() {
		c.place.Rates().Add(q, len(publishes), c.b.SinceStart())
	}
	x := c.b.NewOutbox(t, messages, settles, func(ids []uint16) (settle.Deliveries, int, bool) { return settle.Find(c.session, &c.Peer, ids) })
	places = append(places, later...)
	ends := make([]delayed.Cancel, len(cancels))
	for i, id := range cancels {
		ends[i] = delayed.Cancel{Principal: c.Identity().OwnedBy(), ID: id}
		places = append(places, len(publishes)+i)
	}
	x.Later(timers, ends, places)
	return x
}
