package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/routing"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/settle"
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
)

// Reserved says whether no client may publish to the topic within a transaction: it is a
// Handler's, or only the server publishes to it.
func (c *Conn) Reserved(topic []byte) bool { return c.b.handled(topic) || c.b.protected(topic) }

// NewOutbox takes what the client publishes within a transaction, each of which Judge has
// allowed, and the packet identifiers of the deliveries to it that the transaction
// acknowledges. The bytes are used until it is prepared. Within Handle.
func (c *Conn) NewOutbox(t *session.Turn, publishes []mqtt.Publish, settles []uint16) *Outbox {
	messages := make([]message.Outgoing, len(publishes))
	for i := range publishes {
		messages[i] = c.outgoing(&publishes[i])
	}
	if q := access.QuotaOf(c.b.may, c.Identity()); q.Limited() {
		c.seat.Rates().Add(q, len(messages), c.b.SinceStart())
	}
	return c.b.NewOutbox(t, messages, settles, func(id uint16) (settle.Delivery, bool) { return settle.Find(c.session, &c.Peer, id) })
}
