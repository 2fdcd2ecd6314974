package client

import "github.com/holdfast-mqtt/holdfast/client/internal/conn"

// Delivery is a message that was received.
type Delivery struct {
	Message
	// Redelivered: it may have been delivered before (the DUP flag [MQTT-3.3.1-1]).
	Redelivered bool
	ack         func() // nil: there is nothing to acknowledge
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
	if d.ack != nil {
		d.ack()
	}
}

// inboxBound is how many messages at QoS 0 may wait. At QoS 1 the Receive Maximum that
// the client announces bounds them, which is the same number.
const inboxBound = conn.ReceiveMaximum
