package broker

import (
	"sync/atomic"

	"holdfast/internal/journal"
	"holdfast/internal/lockrank"
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
)

// ackRing keeps one connection's acknowledgements in the order of the packets
// that they answer [MQTT-4.6.0-2], although some of them must wait until the
// journal has made something durable.
//
// An acknowledgement that needn't wait, while none before it waits, never gets
// here: the reader writes it at once. Otherwise it is put at the tail, and whoever
// makes the head ready writes out everything ready behind it: Release, for what was
// held, and for all that waits for one batch the journal, which the connection asks
// for it once. Only the reader puts, so what it reads of pending can only fall
// meanwhile.
type ackRing struct {
	pending atomic.Int32 // places taken
	awaited journal.Seq  // the reader's: the newest batch that it has asked for

	mu      lockrank.Mutex[lockrank.Acks]
	places  []ack // ring, its length a power of two; guarded by mu, as all below
	head    uint64
	tail    uint64
	durable journal.Seq // the newest batch that was asked for and has become durable
	waiting int64       // bytes of responses in places
	closed  bool        // the connection is gone: acknowledgements die, responses go their way
}

// ack is one acknowledgement, with the response that travels behind it.
type ack struct {
	typ      mqtt.Type
	id       uint16
	code     mqtt.ReasonCode
	reason   string
	codes    []mqtt.ReasonCode // of SUBACK and UNSUBACK
	response *Message
	batch    journal.Seq // that must be durable first; 0: none
	counted  bool        // has a place in our Receive Maximum, to be given back
	held     bool        // Release is to come
}

// Ticket names a place in the order of a connection's acknowledgements.
type Ticket uint64

// put takes the next place; mu is held. Called by the reader.
func (r *ackRing) put(a ack) Ticket {
	if int(r.tail-r.head) == len(r.places) {
		bigger := make([]ack, max(8, 2*len(r.places)))
		for i := r.head; i < r.tail; i++ {
			bigger[i&uint64(len(bigger)-1)] = *r.at(i)
		}
		r.places = bigger
	}
	*r.at(r.tail) = a
	r.tail++
	r.pending.Add(1)
	return Ticket(r.tail - 1)
}

// chargedReplies is in which steps responses that wait are charged: a connection
// with few touches no counter that others touch.
const chargedReplies = 64 << 10

// countReply counts bytes of responses that came, or with n below 0 went; acks.mu is
// held.
func (c *Conn) countReply(n int64) {
	before := c.acks.waiting / chargedReplies
	c.acks.waiting += n
	if now := c.acks.waiting / chargedReplies; now != before {
		c.b.memory.Charge(memory.Replies, (now-before)*chargedReplies)
	}
}

// waitingBytes is how many bytes of responses wait.
func (r *ackRing) waitingBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

func (r *ackRing) at(i uint64) *ack { return &r.places[i&uint64(len(r.places)-1)] }

// ready says whether a needs to wait for nothing but those before it; mu is held.
func (r *ackRing) ready(a *ack) bool { return !a.held && a.batch <= r.durable }

// put takes the next place for a. What must wait counts against our Receive
// Maximum if it ends a publish; what is acknowledged at once never does, and the
// handshake of a QoS 2 publish counts from PUBREC to PUBCOMP. Called by the reader;
// acks.mu is held.
func (c *Conn) put(a ack) Ticket {
	if a.typ == mqtt.PUBACK || a.typ == mqtt.PUBREC && a.code.Failed() {
		c.receiving.Add(1)
		a.counted = true
	}
	if a.response != nil {
		c.countReply(a.response.size())
	}
	return c.acks.put(a)
}

// Hold takes the next place for the acknowledgement of p, to be given with
// Release. Called by a Handler on the reader's goroutine, within Handle. It takes
// no lock but the connection's own.
func (c *Conn) Hold(p *mqtt.Publish) Ticket {
	c.acks.mu.Lock()
	defer c.acks.mu.Unlock()
	return c.put(ack{typ: mqtt.PUBACK, id: p.PacketID, held: true})
}

// Release acknowledges what was held, with a response to follow (nil: none),
// which it takes over. From any goroutine, with no lock held; outside the journal's
// callbacks FlushLater must follow.
func (c *Conn) Release(k Ticket, code mqtt.ReasonCode, reason string, response *Message) {
	t := c.b.lockLater()
	defer c.b.unlockLater()
	c.release(t, k, func(a *ack) { a.code, a.reason, a.response = code, reason, response })
}

// release makes the place ready and writes out what its turn has come for.
func (c *Conn) release(t *Turn, k Ticket, fill func(*ack)) {
	r := &c.acks
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.at(uint64(k))
	fill(a)
	if a.response != nil && !r.closed {
		c.countReply(a.response.size())
	}
	if r.closed {
		c.respond(t, a)
		return
	}
	a.held = false
	c.emitReady(t)
}

// emitReady writes out the ready acknowledgements at the head; acks.mu is held.
func (c *Conn) emitReady(t *Turn) {
	r := &c.acks
	for r.head < r.tail {
		a := r.at(r.head)
		if !r.ready(a) {
			return
		}
		c.write(t, a)
		if a.response != nil {
			c.countReply(-a.response.size())
		}
		c.respond(t, a)
		*a = ack{}
		r.head++
		r.pending.Add(-1)
	}
}

// Answer acknowledges p now, in its order, with a response to follow (nil:
// none), which it takes over. Called by a Handler within Handle.
func (c *Conn) Answer(t *Turn, p *mqtt.Publish, code mqtt.ReasonCode, reason string, response *Message) {
	typ := mqtt.PUBACK
	if p.QoS == 2 {
		typ = mqtt.PUBREC
	}
	c.acknowledge(t, ack{typ: typ, id: p.PacketID, code: code, reason: reason, response: response})
}

// AnswerAndDisconnect acknowledges p at once, out of order, so that the client
// doesn't send it again, and disconnects with the same code. Within Handle.
func (c *Conn) AnswerAndDisconnect(t *Turn, p *mqtt.Publish, code mqtt.ReasonCode, reason string) {
	c.write(t, &ack{typ: mqtt.PUBACK, id: p.PacketID, code: code, reason: reason})
	c.Disconnect(code, reason)
}

// acknowledge writes a at once, or puts it behind those that wait. Called by the reader.
func (c *Conn) acknowledge(t *Turn, a ack) {
	if c.acks.pending.Load() == 0 {
		c.write(t, &a)
		c.respond(t, &a)
		return
	}
	c.acks.mu.Lock()
	defer c.acks.mu.Unlock()
	c.put(a)
	c.emitReady(t) // those before it may have been released since the look
}

// AnswerWhenDurable is Answer for a QoS 1 publish whose answer holds as soon as the
// journal's batch is durable.
func (c *Conn) AnswerWhenDurable(t *Turn, p *mqtt.Publish, batch journal.Seq, response *Message) {
	c.acknowledgeWhenDurable(t, ack{typ: mqtt.PUBACK, id: p.PacketID, response: response}, batch)
}

// acknowledgeWhenDurable gives an acknowledgement when the batch is durable, in
// its order. Batch 0 is durable. Called by the reader.
func (c *Conn) acknowledgeWhenDurable(t *Turn, a ack, batch journal.Seq) {
	if batch <= c.b.journal.Complete() {
		c.acknowledge(t, a)
		return
	}
	a.batch = batch
	asked := batch <= c.acks.awaited
	c.acks.mu.Lock()
	c.put(a)
	if asked {
		c.emitReady(t) // the journal may have called since
	}
	c.acks.mu.Unlock()
	if asked {
		return
	}
	c.acks.awaited = batch
	if !c.b.journal.Await(batch, c) {
		c.emitDurable(t, batch)
	}
}

// Durable implements journal.Waiter: what waits for the batch, or one before it, is
// acknowledged.
func (c *Conn) Durable(batch journal.Seq) {
	t := c.b.lockLater()
	defer c.b.unlockLater()
	c.emitDurable(t, batch)
}

func (c *Conn) emitDurable(t *Turn, batch journal.Seq) {
	r := &c.acks
	r.mu.Lock()
	defer r.mu.Unlock()
	r.durable = batch
	if r.closed {
		c.respondReady(t)
		return
	}
	c.emitReady(t)
}

// write appends the acknowledgement to the connection's output, and gives back
// the place in the client's Receive Maximum that it ends.
func (c *Conn) write(t *Turn, a *ack) {
	if a.counted { // before anybody can send the acknowledgement, and the client the next publish
		c.freePlace()
	}
	reason := a.reason
	if !c.problemInfo {
		reason = ""
	}
	c.append(reason, func(dst []byte, reason string) []byte {
		switch a.typ {
		case mqtt.SUBACK:
			return mqtt.AppendSuback(dst, c.version, a.id, a.codes, reason)
		case mqtt.UNSUBACK:
			return mqtt.AppendUnsuback(dst, c.version, a.id, a.codes, reason)
		default:
			return mqtt.AppendAck(dst, c.version, a.typ, a.id, a.code, reason)
		}
	})
	t.touch(c)
}

// respond routes the response, if there is one. It follows the session and not
// the connection: it goes out although the connection may be gone.
func (c *Conn) respond(t *Turn, a *ack) {
	if a.response == nil {
		return
	}
	if a.batch != 0 {
		a.response.notExpired(c.b.Now()) // the disk took its time, not the client
	}
	c.b.routeResponse(t, c, a.response)
	a.response = nil
}

// closeAcks says that the connection is gone: responses that only waited for
// acknowledgements before them go out, those to come go out as they come.
func (c *Conn) closeAcks(t *Turn) {
	r := &c.acks
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	c.respondReady(t)
}

// respondReady routes the responses of a connection that is gone, as far as they may
// go out; acks.mu is held.
func (c *Conn) respondReady(t *Turn) {
	r := &c.acks
	for i := r.head; i < r.tail; i++ {
		if a := r.at(i); r.ready(a) {
			if a.response != nil {
				c.countReply(-a.response.size())
			}
			c.respond(t, a)
		}
	}
}
