package broker

import (
	"holdfast/internal/journal"
	"holdfast/internal/lockrank"
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
)

// Session is what the broker keeps for one client ID: subscriptions, deliveries
// under way and waiting, received QoS 2 identifiers, the will. It lives as long
// as its connection, or for its expiry interval beyond. There may be very many:
// maps are made when something goes in, and small fields stand together.
type Session struct {
	b  *Broker
	id string

	// Held while the session ends, or its delayed will is published; a CONNECT that
	// wants to go on with the session waits for that.
	leaving lockrank.Mutex[lockrank.Leaving]

	mu lockrank.Mutex[lockrank.Session] // guards everything below

	conn         *Conn                    // nil while the client is away
	detaching    *Conn                    // has been conn, and its reader isn't done with the session
	sid          uint64                   // number on disk; 0: not on disk
	subs         map[string]*subscription // nil: none yet
	filterBytes  int32                    // of the filters of subs
	receivedRoom int32                    // for how many entries of received memory is charged
	host         *host                    // that the client came from last; guarded by Broker.mu
	received     map[uint16]*Conn         // QoS 2 packet identifiers from the client between PUBREC and PUBCOMP, and the connection they came on
	durableTo    journal.Seq              // batches up to this one are on disk
	sentTo       uint64                   // messages of routed before it may have been sent by an earlier run
	marked       uint64                   // messages of routed before it may be sent: that they may have been is on disk
	mark         uint64                   // the same, once markBatch is on disk
	markBatch    journal.Seq
	expiry       uint32    // Session Expiry Interval in seconds; 0: ends with its connection
	awayByWall   bool      // away was read from disk: it follows the wall clock forward
	ended        bool      // no longer in the registry
	awaiting     bool      // Durable will be called, and sends what waits for the disk
	loading      bool      // a goroutine reads messages back from the disk
	passedOver   bool      // a shared subscription's message found no room
	replaying    bool      // a goroutine sends what replays names
	asked        byte      // what the client asked for when its queue is full: an index of queueFulls; 0: nothing
	warned, said bool      // the queue on disk is near its bound; and the log has it
	purging      bool      // a goroutine deletes expired messages
	will         *will     // of the connection, or delayed
	expireAt     *timer    // while away
	willAt       *timer    // while away
	away         int64     // since when, on the wall clock in ms; 0: connected
	routed       outqueue  // what was published by anybody
	direct       outqueue  // what a handler sent
	orders       uint64    // count of enqueued messages
	inflight     int       // slots counted against receiveMax
	receiveMax   int       // the client's, bounded by our own
	notices      int       // notifications in direct
	replays      []*replay // retained messages on their way to new subscriptions
}

func newSession(b *Broker, id string) *Session {
	return &Session{
		b: b, id: id,
		routed: outqueue{base: routedBase, span: routedSpan, deep: shallow},
		direct: outqueue{base: directBase, span: directSpan, deep: shallow},
	}
}

// subscribe adds a subscription, or puts it in place of the one to the same
// filter; s.mu is held, or nobody else knows the session yet.
func (s *Session) subscribe(sub *subscription) {
	if s.subs == nil {
		s.subs = make(map[string]*subscription)
	}
	s.subs[sub.filter] = sub
	s.filterBytes += int32(len(sub.filter))
}

// durable says whether the session outlives its connection; s.mu is held.
func (s *Session) durable() bool { return s.expiry > 0 }

// enqueue puts a QoS 1 or 2 message, of which it takes over one reference,
// behind those that wait. s.mu is held. What belongs on disk is sent when the
// turn has committed it, everything else as far as it can be. At the queue's
// bound it does what the session's policy says.
func (s *Session) enqueue(t *Turn, q *outqueue, it slot) {
	if s.full(t, q) && !s.makeRoom(t, q) {
		it.msg.release()
		return
	}
	s.orders++
	it.order = s.orders
	if s.sendAtOnce(t, q, &it) {
		return
	}
	it.size = uint32(it.msg.size())
	s.count(q, &it)
	s.hold(q, &it)
	if q == &s.routed && s.sid != 0 {
		it.batch = unsaved
		it.msg.keep()
		q.push(it, it.shared() || s.windowHasRoom())
		it.seq = q.tail - 1
		t.saves = append(t.saves, save{session: s, sid: s.sid, seq: it.seq, it: it})
	} else {
		q.push(it, true)
		s.pump(t)
	}
	s.warn(t, q)
	s.shed(t)
}

// sendAtOnce is the short way for a session that ends with its connection and has
// nothing waiting: the message goes into the output, and the queue keeps no more
// than the place of its packet identifier. It says false if the message must take
// the long way. s.mu is held.
func (s *Session) sendAtOnce(t *Turn, q *outqueue, it *slot) bool {
	c := s.conn
	if c == nil || s.durable() || it.qos != 1 || s.inflight >= s.receiveMax ||
		!s.routed.empty() || !s.direct.empty() || q.live+len(q.strays) >= int(q.span) || c.tr.Full() {
		return false
	}
	it.seq = q.tail
	if q.identify(it) {
		it.id = 0
		return false
	}
	if s.send(t, c, q, it) {
		q.sent(q.push(*it, true))
	} else {
		it.msg.release()
		s.finish(q, it)
	}
	return true
}

// respond is sendAtOnce for a response to a request; true: it has taken over the
// reference.
func (s *Session) respond(t *Turn, sub *subscription, m *Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || sub.gone || sub.qos == 0 || sub.id != 0 || s.full(t, &s.direct) {
		return false
	}
	it := slot{msg: m, qos: 1, order: s.orders + 1}
	if !s.sendAtOnce(t, &s.direct, &it) {
		return false
	}
	s.orders++
	t.touch(s.conn)
	return true
}

// count adds a slot to the levels; s.mu is held.
func (s *Session) count(q *outqueue, it *slot) {
	it.held = true
	s.level(q, 1, int64(it.size))
}

// uncount takes a slot out of the levels, if it is in; s.mu is held.
func (s *Session) uncount(q *outqueue, it *slot) {
	if it.held {
		it.held = false
		s.level(q, -1, -int64(it.size))
	}
}

func (s *Session) level(q *outqueue, messages, bytes int64) {
	q.messages += int(messages)
	q.bytes += bytes
	s.b.stats.Queued.Add(messages)
	s.b.stats.QueuedBytes.Add(bytes)
}

// drop finishes a slot: its message and its row go. s.mu is held.
func (s *Session) drop(q *outqueue, it *slot) {
	if it.saved && s.sid != 0 {
		batch := s.deleteRow(it.seq)
		if it.id != 0 && q.strays[it.id] == it {
			q.cooling = append(q.cooling, cooling{it.id, batch})
		}
	}
	s.remove(q, it)
	q.trim()
}

// deleteRow deletes a message's row; s.mu is held.
func (s *Session) deleteRow(seq uint64) journal.Seq {
	var key [18]byte
	a := s.b.journal.Begin()
	a.Delete(appendQueueKey(key[:0], s.sid, seq))
	return a.End(nil)
}

// remove finishes a slot whose row, if it has one, the caller sees to, and after
// which q.trim is to follow; s.mu is held.
func (s *Session) remove(q *outqueue, it *slot) {
	s.letGo(q, it)
	s.finish(q, it)
	q.settle(it)
}

// letGo releases a slot's message; s.mu is held.
func (s *Session) letGo(q *outqueue, it *slot) {
	if it.msg == nil {
		return
	}
	q.inMemory -= int64(it.size)
	if it.size < chargedAlone && it.msg.stamp == 0 {
		q.small -= slotOverhead + int64(it.size)
		s.charge(q)
	}
	it.msg.release()
	it.msg = nil
}

// Messages of chargedAlone bytes and more are charged to the pool of memory once,
// however many queues hold them. Smaller ones are charged for each queue, with what
// the slot takes, and in steps: to touch the pool's counters for each of them would
// cost more than that is worth.
const (
	chargedAlone = 1 << 10
	chargeStep   = 4 << 10
)

// hold counts a slot's message as in memory; s.mu is held.
func (s *Session) hold(q *outqueue, it *slot) {
	q.inMemory += int64(it.size)
	switch {
	case it.msg.stamp != 0: // the store of retained messages has it
	case it.size >= chargedAlone:
		s.b.charge(it.msg, s.kind(q))
	default:
		q.small += slotOverhead + int64(it.size)
		s.charge(q)
	}
}

func (s *Session) kind(q *outqueue) memory.Kind {
	if q == &s.direct {
		return memory.Replies
	}
	return memory.Queues
}

// charge charges what the queue holds in small messages; s.mu is held.
func (s *Session) charge(q *outqueue) {
	if d := q.small - q.charged; d >= chargeStep || d <= -chargeStep || q.small == 0 && d != 0 {
		s.b.memory.Charge(s.kind(q), d)
		q.charged = q.small
	}
}

// finish takes a slot without a message out of everything that counts it; s.mu is
// held.
func (s *Session) finish(q *outqueue, it *slot) {
	if it.number != 0 {
		s.b.payloads.release(s.b.journal, it.number)
	}
	s.uncount(q, it)
	if it.counted {
		s.inflight--
	}
	if it.notify {
		s.notices--
	}
}

// pump sends what the client's Receive Maximum and the room in the connection's
// output allow, oldest first; s.mu is held. It is called whenever one of these
// grows: after enqueueing, an acknowledgement, a drained output, a resume.
func (s *Session) pump(t *Turn) {
	c := s.conn
	if c == nil {
		return
	}
	for !c.tr.Full() { // or Drained calls again
		q, it := s.nextToSend()
		if it == nil {
			break
		}
		switch {
		case it.batch == unsaved:
			return // commit calls again
		case it.state == slotReleased:
			if s.awaits(it.batch) {
				return // Durable calls again
			}
			c.writeAck(t, mqtt.PUBREL, it.id, mqtt.Success, "")
			q.sent(it)
			continue
		case s.inflight >= s.receiveMax:
			return
		case it.msg == nil:
			t.feed = append(t.feed, s)
			return // goOn calls again
		case q == &s.routed && !s.mayLeave(it):
			return // Durable calls again
		case q == &s.direct:
			q.identify(it)
		}
		if s.send(t, c, q, it) {
			q.sent(it)
		} else {
			s.drop(q, it)
		}
	}
	if s.lacksNext() {
		t.feed = append(t.feed, s)
	}
}

// nextToSend gives the older of the two queues' candidates.
func (s *Session) nextToSend() (*outqueue, *slot) {
	routed, direct := s.routed.candidate(), s.direct.candidate()
	switch {
	case routed == nil && direct == nil:
		return nil, nil
	case routed == nil || direct != nil && direct.order < routed.order:
		return &s.direct, direct
	default:
		return &s.routed, routed
	}
}

// mayLeave says whether what a routed message needs to be on disk before it is
// sent is there, and gives it its packet identifier; s.mu is held.
//
// That is, at QoS 2, the message itself, or a crash could make the client get it
// from another publish again. It is the packet identifier if that does not follow
// from the sequence number. And it is the mark, which says that the message may
// have been sent: after a crash nobody else may get it [MQTT-4.8.2-5], and DUP is
// set. The mark is so far ahead that the disk is rarely waited for.
func (s *Session) mayLeave(it *slot) bool {
	for q := &s.routed; len(q.cooling) > 0 && s.onDiskBy(q.cooling[0].batch); {
		q.cooling = q.cooling[1:]
	}
	changed := s.routed.identify(it)
	if s.sid == 0 {
		return true
	}
	if changed {
		a := s.b.journal.Begin()
		a.Set(queueKey(s.sid, it.seq), appendQueueRow(nil, it, it.id, it.number, s.b.wall()))
		it.batch = a.End(nil)
	}
	if it.state == slotPending && (it.qos == 2 || it.id != s.routed.packetID(it.seq)) && s.awaits(it.batch) {
		return false
	}
	return s.advanceMark(it.seq)
}

// markAhead is how many messages ahead of those sent the mark is set, so that it
// is written once for half of them. The messages between the two are sent with DUP
// after a crash, although they have not been sent before.
//
// After a crash the sequence goes on from the mark. A step that were a part of the
// number of packet identifiers would bring them around to those under way again
// after a few crashes.
const markAhead = 5003

// advanceMark moves the mark on if it is near, and says whether it is beyond seq
// on disk; s.mu is held.
func (s *Session) advanceMark(seq uint64) bool {
	if s.marked < s.mark && !s.onDiskBy(s.markBatch) {
		if seq < s.marked {
			return true
		}
		return !s.awaits(s.markBatch)
	}
	s.marked = s.mark
	if seq+markAhead/2 < s.mark {
		return true
	}
	s.mark = seq + markAhead
	a := s.b.journal.Begin()
	a.Set(sessionKey(s.id), s.row(s.mark))
	s.markBatch = a.End(nil)
	return seq < s.marked || !s.awaits(s.markBatch)
}

// mayHaveSent gives the sequence number before which messages may have been sent;
// s.mu is held.
func (s *Session) mayHaveSent() uint64 { return max(s.routed.next, s.sentTo) }

// send writes one PUBLISH, or says false if it mustn't be sent any more: it has
// expired, or is larger than the client takes.
func (s *Session) send(t *Turn, c *Conn, q *outqueue, it *slot) bool {
	m := it.msg
	d := &t.delivery
	*d = mqtt.Delivery{
		QoS: it.qos, Retain: it.retain, Dup: it.dup, PacketID: it.id,
		Topic: m.topic(), Props: m.props(), Payload: m.payload(), SubscriptionIDs: it.subIDs,
	}
	if m.expiresAt != 0 {
		left := secondsLeft(m.expiresAt, s.b.Now())
		if left == 0 && it.state == slotPending && !it.dup {
			s.b.stats.Expired.Add(1)
			return false
		}
		d.HasExpiry, d.Expiry = true, max(left, 1)
	}
	if !c.deliver(t, d, m) {
		return false
	}
	it.state = slotSent
	it.counted = true
	s.inflight++
	if !s.durable() && !it.shared() {
		// Nobody will ask for it again.
		if it.held {
			s.letGo(q, it)
			s.uncount(q, it)
		} else {
			m.release()
			it.msg = nil
		}
	}
	return true
}

// awaits says whether a batch isn't on disk yet, and if so arranges for Durable
// to be called; s.mu is held.
func (s *Session) awaits(batch journal.Seq) bool {
	if s.onDiskBy(batch) {
		return false
	}
	if !s.awaiting {
		s.awaiting = s.b.journal.Await(batch, s)
	}
	return s.awaiting
}

// onDiskBy says whether the batch is on disk; s.mu is held.
func (s *Session) onDiskBy(batch journal.Seq) bool {
	return batch <= s.durableTo || batch <= s.b.journal.Complete()
}

// Durable implements journal.Waiter: QoS 2 messages leave once they are on disk.
func (s *Session) Durable(batch journal.Seq) {
	t := s.b.lockLater()
	defer s.b.unlockLater()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaiting = false
	s.durableTo = batch // although it isn't complete before its callbacks have run
	s.pump(t)
	s.evict()
	if s.conn != nil {
		t.touch(s.conn)
	}
}

// acknowledged is the client's PUBACK, PUBREC or PUBCOMP. ok is false if no
// delivery with this identifier awaits it. more: goOn has something to do now. A
// PUBREL in answer must wait for batch.
func (s *Session) acknowledged(t *Turn, c *Conn, typ mqtt.Type, a *mqtt.Ack) (ok, more bool, batch journal.Seq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return true, false, 0 // taken over meanwhile
	}
	q := &s.routed
	if a.PacketID >= directBase {
		q = &s.direct
	}
	it := q.find(a.PacketID)
	switch {
	case it == nil:
		return false, false, 0
	case typ == mqtt.PUBACK && it.qos == 1 && it.state == slotSent,
		typ == mqtt.PUBCOMP && it.state == slotReleased,
		typ == mqtt.PUBREC && it.qos == 2 && a.Code.Failed():
		s.drop(q, it)
	case typ == mqtt.PUBREC && it.qos == 2:
		s.release(q, it)
		return true, false, it.batch
	default:
		return false, false, 0
	}
	s.pump(t)
	return true, s.passedOver || len(s.replays) > 0 || s.lacksNext(), 0
}

// release notes that the client has a QoS 2 message: only PUBCOMP is awaited.
// PUBREL leaves when that is on disk: after it the client knows the message no
// more, and would take it for a new one.
func (s *Session) release(q *outqueue, it *slot) {
	fresh := it.state != slotReleased
	it.state = slotReleased
	s.letGo(q, it)
	if fresh && it.saved && s.sid != 0 {
		a := s.b.journal.Begin()
		a.Set(queueKey(s.sid, it.seq), appendReleasedRow(nil, q.ownID(it), it.qos))
		it.batch = a.End(nil)
	}
	if it.number != 0 {
		s.b.payloads.release(s.b.journal, it.number)
		it.number = 0
	}
}

// resume begins a connection of the session: what was under way goes out
// again, in order, under the new Receive Maximum. s.mu is held.
func (s *Session) resume(t *Turn, c *Conn) {
	s.conn = c
	s.inflight = 0
	s.receiveMax = c.receiveMax
	s.routed.rewind()
	s.direct.rewind()
	s.pump(t)
}

// rest is called when the client has gone: what it was sent will be sent again,
// and what is on disk needn't be in memory. s.mu is held.
func (s *Session) rest() {
	s.inflight = 0
	s.routed.rewind()
	s.direct.rewind()
	s.evict()
	if len(s.received) == 0 {
		s.received = nil
		s.creditReceived()
	}
}

// discard lets go of everything queued; s.mu is held.
func (s *Session) discard() {
	for _, q := range []*outqueue{&s.routed, &s.direct} {
		q.each(func(it *slot) {
			s.letGo(q, it)
			s.finish(q, it)
		})
		s.level(q, -int64(q.middle.count), -q.middle.bytes)
		*q = outqueue{base: q.base, span: q.span, deep: shallow}
	}
}

// Notify sends the client a handler's notification, which it takes over, on this
// connection or, once it is queued, on a later one of the session. It says false
// when it can't without leaving a hole: the connection is gone, or its pending
// notifications have reached their bound. From any goroutine; flushes by itself.
func (c *Conn) Notify(m *Message) bool {
	t := c.b.lockLater()
	defer c.b.unlockLater()
	if len(t.notified) >= notifiedAtOnce {
		t.flush()
	}
	return c.session.notify(t, c, m)
}

// notifiedAtOnce is how many connections are given a notification before they
// are flushed: the first of thousands shouldn't wait for the last, nor the second
// processor.
const notifiedAtOnce = 256

func (s *Session) notify(t *Turn, c *Conn, m *Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c || s.notices >= c.b.limits.MaxNotifications {
		m.release()
		return false
	}
	if !c.fits(m) {
		c.b.stats.TooLarge.Add(1)
		m.release()
		return true
	}
	s.notices++
	s.enqueue(t, &s.direct, slot{msg: m, qos: 1, notify: true})
	if n := len(t.notified); n == 0 || t.notified[n-1] != c {
		t.notified = append(t.notified, c)
	}
	return true
}
