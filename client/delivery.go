package client

import (
	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/client/internal/transact"
)

// Delivery is a message that was received.
type Delivery struct {
	Message
	// Redelivered: it may have been delivered before (the DUP flag [MQTT-3.3.1-1]).
	Redelivered bool

	// What acknowledges it: a function, or the connection that it came over; neither: there
	// is nothing to acknowledge.
	ack      func()
	acks     *conn.Acks
	number   uint64 // of the message in acks
	packetID uint16
}

// NewDelivery makes a Delivery whose Ack calls ack, which may be nil: for tests, and for
// sources of messages other than a [Session].
func NewDelivery(m Message, redelivered bool, ack func()) Delivery {
	return Delivery{Message: m, Redelivered: redelivered, ack: ack}
}

// Ack acknowledges the message: the server forgets it. It belongs to the connection
// over which the message came, and does nothing once that is lost: the message comes
// again. Acknowledgements leave in the order of the messages [MQTT-4.6.0-2], so one that
// is missing holds the later ones back, and after 1,024 of them the server sends nothing
// more. Acknowledging twice is harmless, and so is acknowledging a message of QoS 0.
func (d Delivery) Ack() {
	switch {
	case d.ack != nil:
		d.ack()
	case d.acks != nil:
		d.acks.Give(d.number)
	}
}

// Settling is for [txn.Txn.Settle].
func (d Delivery) Settling() transact.Settling {
	return transact.Settling{Acks: d.acks, Number: d.number, PacketID: d.packetID}
}

// CanSettle tells whether a transaction could acknowledge the message at this moment
// ([txn.Txn.Settle]): it came at QoS 1 from a [Session], over a connection that stands.
func (d Delivery) CanSettle() bool { return d.acks != nil && !d.acks.Ended() }

// inboxBound is how many messages at QoS 0 may wait. At QoS 1 the Receive Maximum that
// the client announces bounds them, which is the same number.
const inboxBound = conn.ReceiveMaximum
