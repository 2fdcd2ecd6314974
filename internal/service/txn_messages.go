package service

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

// companion is the broker's part of a transaction: what it publishes, and what it
// acknowledges. It implements engine.Companion.
type companion struct {
	outbox *broker.Outbox
	txn    *engine.Txn
}

// Prepare implements engine.Companion.
func (c *companion) Prepare() (rows bool, refused statestore.Reply) {
	rows, i, why := c.outbox.Prepare()
	switch why {
	case broker.QueueFull:
		refused = statestore.Reply{Fault: statestore.QueueFull}
	case broker.RetainedFull:
		refused = statestore.Reply{Fault: statestore.QuotaExceeded, Bound: statestore.MaxRetained}
	case broker.TooManyDeliveries:
		refused = statestore.Reply{Fault: statestore.QuotaExceeded, Bound: statestore.MaxTxnDeliveries}
	case broker.TimersFull:
		refused = statestore.Reply{Fault: statestore.QuotaExceeded, Bound: statestore.MaxTimers}
	case broker.TimersOfClientFull:
		refused = statestore.Reply{Fault: statestore.QuotaExceeded, Bound: statestore.MaxTimersOfClient}
	case broker.TimerTwice:
		refused = statestore.Reply{Fault: statestore.TimerTwice}
	case broker.TimerUnreadable:
		refused = statestore.Reply{Fault: statestore.Unreadable}
	case broker.DiskLow:
		refused = statestore.Reply{Fault: statestore.QuotaExceeded, Bound: statestore.DiskReserve}
	case broker.NotUnderWay:
		return false, statestore.Reply{Kind: statestore.Error, Fault: statestore.NotUnderWay, Op: c.txn.Settles[i].Op}
	default:
		return rows, refused
	}
	refused.Kind, refused.Op = statestore.Error, c.operation(i)
	return false, refused
}

// operation is the number of the operation of a message, or behind the messages of a CANCEL.
func (c *companion) operation(i int) int {
	if n := len(c.txn.Publishes); i >= n {
		return c.txn.Cancels[i-n].Op
	}
	return c.txn.Publishes[i].Op
}

// ended says of each CANCEL whether there was such a timer.
func (c *companion) ended() (ended []bool) {
	for i := range c.txn.Cancels {
		ended = append(ended, c.outbox.Ended(i))
	}
	return ended
}

// Append implements engine.Companion.
func (c *companion) Append(a journal.Append) { c.outbox.Append(a) }

// Commit implements engine.Companion.
func (c *companion) Commit(batch journal.Seq) journal.Seq { return c.outbox.Commit(batch) }

// Withdraw implements engine.Companion.
func (c *companion) Withdraw() { c.outbox.Withdraw() }

// accompany gives the transaction its companion, if it publishes, acknowledges or cancels. The
// fault is that of a message which nothing may publish, or of a timer that two operations have.
func (ep *endpoint) accompany(t *broker.Turn, x *transaction) (refused protocol.TxnFault) {
	if len(x.Publishes)+len(x.Settles)+len(x.Cancels) == 0 {
		return protocol.TxnFault{}
	}
	publishes := slices.Grow(x.publishes[:0], len(x.Publishes))[:len(x.Publishes)]
	packets := slices.Grow(x.packets[:0], sizeOf(x.Publishes))
	x.publishes, x.packets = publishes, packets
	for i := range x.Publishes {
		publishes[i] = broker.Timed{Publish: mqtt.Publish{Bounds: t.Publish.Bounds}}
		if f, b := ep.compose(&publishes[i], &x.Publishes[i], &packets); f != statestore.None {
			return protocol.TxnFault{Op: x.Publishes[i].Op, Fault: f, Bound: b}
		}
	}
	if op := timerTwice(&x.Txn, publishes); op != 0 {
		return protocol.TxnFault{Op: op, Fault: statestore.TimerTwice}
	}
	ids, cancels := x.settles[:0], make([][]byte, len(x.Cancels))
	for i := range x.Settles {
		ids = append(ids, x.Settles[i].PacketID)
	}
	for i := range x.Cancels {
		cancels[i] = x.Cancels[i].ID
	}
	x.settles = ids
	x.Companion = &companion{ep.conn.NewOutbox(t, publishes, ids, cancels), &x.Txn}
	return protocol.TxnFault{}
}

// timerTwice returns the first operation that sets or cancels a timer that an earlier one does, 0
// if there is none.
func timerTwice(x *engine.Txn, publishes []broker.Timed) (op int) {
	var ids map[string]int // operations
	note := func(id []byte, by int) {
		if first, twice := ids[string(id)]; twice && (op == 0 || max(first, by) < op) {
			op = max(first, by)
		} else if !twice {
			if ids == nil {
				ids = map[string]int{}
			}
			ids[string(id)] = by
		}
	}
	for i := range publishes {
		if when := &publishes[i].When; when.Asked && when.ID != nil {
			note(when.ID, x.Publishes[i].Op)
		}
	}
	for i := range x.Cancels {
		note(x.Cancels[i].ID, x.Cancels[i].Op)
	}
	return op
}

// sizeOf is how large the packets of messages are, about, in bytes.
func sizeOf(messages []txn.Publish) (n int) {
	for i := range messages {
		m := &messages[i]
		n += 64 + len(m.Topic) + len(m.Payload) + len(m.ContentType) + len(m.ResponseTopic) + len(m.CorrelationData)
		for _, u := range m.User {
			n += 5 + len(u[0]) + len(u[1])
		}
	}
	return n
}

// compose makes the PUBLISH that a message would be if its client sent it by itself, and
// judges it as such. It appends the packet to packets.
func (ep *endpoint) compose(timed *broker.Timed, of *txn.Publish, packets *[]byte) (f statestore.Fault, b statestore.Bound) {
	p := &timed.Publish
	props := mqtt.PublishProps{
		HasPayloadFormat: of.Format.Given, PayloadFormat: byte(of.Format.Value),
		HasMessageExpiry: of.Expiry.Given, MessageExpiry: of.Expiry.Value,
		HasContentType: of.ContentType != nil, ContentType: of.ContentType,
		HasResponseTopic: of.ResponseTopic != nil, ResponseTopic: of.ResponseTopic,
		HasCorrelationData: of.CorrelationData != nil, CorrelationData: of.CorrelationData,
	}
	var room [512]byte // on the stack; more is on the heap
	props.Raw = room[:0]
	for _, u := range of.User {
		props.Raw = mqtt.AppendUserProp(props.Raw, u[0], u[1])
	}
	if decode(p, of, &props, packets) != nil {
		if decode(p, of, new(mqtt.PublishProps), packets) != nil {
			return statestore.InvalidTopic, b
		}
		return statestore.InvalidProperty, b
	}
	if ep.conn.Reserved(p.Topic) {
		return statestore.ReservedTopic, b
	}
	if p.Props.EmptyResponseTopic() {
		return statestore.InvalidProperty, b
	}
	var code mqtt.ReasonCode
	switch timed.When, code, _ = ep.conn.JudgeTimed(p); code {
	case mqtt.Success:
		return statestore.None, b
	case mqtt.PayloadFormatInvalid:
		return statestore.NotAsFormatted, b
	case mqtt.NotAuthorized:
		return statestore.NotAuthorized, b
	case mqtt.QuotaExceeded:
		return statestore.QuotaExceeded, statestore.MaxDelay
	case mqtt.ImplementationSpecificError:
		return statestore.InvalidProperty, b
	}
	return statestore.InvalidTopic, b
}

// decode writes the packet and reads it back: so it is checked as one that came.
func decode(p *mqtt.Publish, of *txn.Publish, props *mqtt.PublishProps, packets *[]byte) error {
	start := len(*packets)
	*packets = mqtt.AppendPublish(*packets, mqtt.V5, &mqtt.Publish{Topic: of.Topic, Payload: of.Payload, QoS: of.QoS, Retain: of.Retain, PacketID: 1, Props: *props})
	packet := (*packets)[start:]
	header, body, _, _, err := mqtt.Split(packet, len(packet))
	if err != nil {
		return err
	}
	return p.Decode(mqtt.V5, header, body)
}
