package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/acks"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Answer acknowledges p in its order, without waiting for the disk itself, and routes the
// response after that (nil: none), which it takes over. Called by a Handler within Handle.
func (c *Conn) Answer(t *session.Turn, p *mqtt.Publish, code mqtt.ReasonCode, reason string, response *message.Message) {
	typ := mqtt.PUBACK
	if p.QoS == 2 {
		typ = mqtt.PUBREC
	}
	c.acknowledge(t, acks.Ack{Type: typ, ID: p.PacketID, Code: code, Reason: reason, Response: response})
}

// AnswerAndDisconnect acknowledges p, so that the client doesn't send it again, and
// disconnects with the same code. Acknowledgements that wait for the disk go first: it waits
// for them. Within Handle.
func (c *Conn) AnswerAndDisconnect(t *session.Turn, p *mqtt.Publish, code mqtt.ReasonCode, reason string) {
	if c.acks.Pending() > 0 {
		t.Flush()
		c.Transport.Flush()
		c.b.WaitDurable(c.b.Journal.Last()) // no acknowledgement waits for a later batch
	}
	c.acknowledge(t, acks.Ack{Type: mqtt.PUBACK, ID: p.PacketID, Code: code, Reason: reason})
	c.Disconnect(code, reason)
}

// AnswerWhenDurable is Answer for a QoS 1 publish whose answer may leave as soon as the
// journal's batch is durable. asked: the Handler has registered the connection as a waiter
// of the journal for this answer, or a waiter of the Handler's own calls it; so the answer
// has its place among the journal's callbacks.
func (c *Conn) AnswerWhenDurable(t *session.Turn, p *mqtt.Publish, batch journal.Seq, asked bool, response *message.Message) {
	a := acks.Ack{Type: mqtt.PUBACK, ID: p.PacketID, Response: response}
	if !asked {
		c.acknowledgeWhenDurable(t, a, batch)
		return
	}
	c.acks.Asked(batch)
	c.count(&a)
	c.acks.PutWaiting(t, (*ackOutput)(c), a)
}

// AnswerWhenBothDurable is AnswerWhenDurable for an answer that also waits for then, a later
// batch; 0: for none.
func (c *Conn) AnswerWhenBothDurable(t *session.Turn, p *mqtt.Publish, batch journal.Seq, asked bool, then journal.Seq, response *message.Message) {
	if then == 0 {
		c.AnswerWhenDurable(t, p, batch, asked, response)
		return
	}
	if asked {
		c.acks.Asked(batch)
	}
	c.acknowledgeWhenDurable(t, acks.Ack{Type: mqtt.PUBACK, ID: p.PacketID, Response: response}, then)
}

// acknowledge writes a at once, or puts it behind those that wait. Called by the reader.
func (c *Conn) acknowledge(t *session.Turn, a acks.Ack) {
	if c.acks.Pending() == 0 {
		c.write(t, &a)
		c.respond(t, &a)
		return
	}
	c.count(&a)
	c.acks.Put(t, (*ackOutput)(c), a)
}

// acknowledgeWhenDurable gives an acknowledgement when the batch is durable, in
// its order. Batch 0 is durable. Called by the reader.
func (c *Conn) acknowledgeWhenDurable(t *session.Turn, a acks.Ack, batch journal.Seq) {
	if batch <= c.b.Journal.Complete() {
		c.acknowledge(t, a)
		return
	}
	ask := c.acks.Ask(batch)
	c.count(&a)
	c.acks.PutWaiting(t, (*ackOutput)(c), a)
	if ask && !c.b.Journal.Await(batch, c) {
		c.acks.Answered(t, (*ackOutput)(c))
	}
}

// count counts an acknowledgement that waits against our Receive Maximum if it ends a
// publish. What is acknowledged at once never counts, and the handshake of a QoS 2 publish
// counts from PUBREC to PUBCOMP. Called by the reader.
func (c *Conn) count(a *acks.Ack) {
	if a.Type == mqtt.PUBACK || a.Type == mqtt.PUBREC && a.Code.Failed() {
		c.receiving.Add(1)
		a.Counted = true
	}
}

// Durable implements journal.Waiter: a batch that acknowledgements wait for is durable.
func (c *Conn) Durable(journal.Seq) {
	t := c.b.LockDeferred()
	defer c.b.UnlockDeferred()
	c.acks.Answered(t, (*ackOutput)(c))
}

// ackOutput is the Conn as its ring of acknowledgements sees it.
type ackOutput Conn

func (o *ackOutput) Write(t *session.Turn, a *acks.Ack)   { (*Conn)(o).write(t, a) }
func (o *ackOutput) Respond(t *session.Turn, a *acks.Ack) { (*Conn)(o).respond(t, a) }
func (o *ackOutput) Charge(bytes int64)                   { o.b.Memory.Charge(memory.Replies, bytes) }

// write appends the acknowledgement to the connection's output, and gives back
// the place in the client's Receive Maximum that it ends.
func (c *Conn) write(t *session.Turn, a *acks.Ack) {
	if a.Counted { // before the acknowledgement can leave, and the client send the next publish
		c.freePlace()
	}
	reason := a.Reason
	if !c.ProblemInfo {
		reason = ""
	}
	c.Append(reason, func(dst []byte, reason string) []byte {
		switch a.Type {
		case mqtt.SUBACK:
			return mqtt.AppendSuback(dst, c.Protocol, a.ID, a.Codes, reason)
		case mqtt.UNSUBACK:
			return mqtt.AppendUnsuback(dst, c.Protocol, a.ID, a.Codes, reason)
		default:
			return mqtt.AppendAck(dst, c.Protocol, a.Type, a.ID, a.Code, reason)
		}
	})
	t.MarkDirty(&c.Peer)
}

// respond routes the response, if there is one, also after the connection has ended: other
// connections and sessions may subscribe to its topic.
func (c *Conn) respond(t *session.Turn, a *acks.Ack) {
	if a.Response == nil {
		return
	}
	if a.Waited() {
		a.Response.NotExpired(c.b.Now()) // the disk took its time, not the client
	}
	c.b.routeResponse(t, c, a.Response)
}
