package session

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/hosts"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/timers"
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Session is what the broker keeps for one client ID: subscriptions, deliveries
// under way and waiting, received QoS 2 identifiers, the will. It lives as long
// as its connection, or for its expiry interval beyond. There may be very many:
// maps are made when something goes in, and small fields stand together.
type Session struct {
	Env   *Env
	ID    string
	owner *string // nil: of a client that has not proven who it is

	// Held while the session ends, or its delayed will is published; a CONNECT that
	// wants to go on with the session waits for that.
	Leaving lockrank.Mutex[lockrank.Leaving]

	Mu lockrank.Mutex[lockrank.Session] // guards everything below

	Peer      *peer.Peer               // nil while the client is away
	Detaching *peer.Peer               // was Peer before, and its reader isn't done with the session
	SID       uint64                   // number on disk; 0: not on disk
	Subs      map[string]*Subscription // nil: none yet
	Place     hosts.Place[*Session]    // among the sessions of the address that the client came from last; guarded by Registry.mu
	Received  map[uint16]*peer.Peer    // QoS 2 packet identifiers from the client between PUBREC and PUBCOMP, and the connection they came on
	DurableTo journal.Seq              // batches up to this one are on disk
	Will      *will.Will               // of the connection, or delayed
	ExpireAt  *timers.Timer            // while away
	WillAt    *timers.Timer            // while away
	Away      int64                    // since when, on the wall clock in ms; 0: connected
	Routed    queue.Queue              // messages that were published to topics
	Direct    queue.Queue              // what a handler sent
	Orders    uint64                   // count of enqueued messages
	// Judge says whether a queued message may still be sent: the client's permissions may
	// have changed since it was queued. direct: it is in the queue Direct, otherwise in
	// Routed. nil: every message may be sent.
	Judge   func(topic []byte, direct bool) bool
	Replays *Replays // retained messages on their way to new subscriptions; nil: none

	FilterBytes  int32  // of the filters in Subs
	ReceivedRoom int32  // number of entries of Received for which memory is charged
	Inflight     int32  // slots counted against receiveMax
	receiveMax   int32  // the client's, bounded by our own
	notices      int32  // notifications in Direct
	Expiry       uint32 // Session Expiry Interval in seconds; 0: ends with its connection
	AwayByWall   bool   // Away was read from disk: it follows the wall clock forward
	Ended        bool   // no longer in the registry
	awaiting     bool   // Durable will be called, and sends what waits for the disk
	loading      bool   // a goroutine reads messages back from the disk
	passedOver   bool   // a shared subscription's message found no room
	Replaying    bool   // a goroutine sends what Replays names
	purging      bool   // a goroutine deletes expired messages
	asked        byte   // what the client asked for when its queue is full: an index of limits.QueueFulls; 0: nothing
	warned, said bool   // the queue on disk is near its bound; and the log has it
}

// New makes the session of a client ID that belongs to owner, see access.Identity; empty:
// to clients that have not proven who they are.
func New(env *Env, id, owner string) *Session {
	s := &Session{
		Env: env, ID: id,
		Routed: queue.New(queue.RoutedBase, queue.RoutedSpan),
		Direct: queue.New(queue.DirectBase, queue.DirectSpan),
	}
	if owner != "" {
		s.owner = &owner
	}
	return s
}

// Owner says to which principal the session belongs. It does not change.
func (s *Session) Owner() string {
	if s.owner == nil {
		return ""
	}
	return *s.owner
}

// Subscribe adds a subscription, or puts it in place of the one to the same
// filter; s.Mu is held, or no other goroutine knows the session yet.
func (s *Session) Subscribe(sub *Subscription) {
	if s.Subs == nil {
		s.Subs = make(map[string]*Subscription)
	}
	s.Subs[sub.Filter] = sub
	s.FilterBytes += int32(len(sub.Filter))
}

// Persistent says whether the session outlives its connection; s.Mu is held.
func (s *Session) Persistent() bool { return s.Expiry > 0 }

// enqueue puts a QoS 1 or 2 message, of which it takes over one reference,
// behind those that wait; from is the shared subscription by which it came, nil: it came
// by none. s.Mu is held. A message that belongs on disk is sent when the turn has
// committed it, any other as soon as Pump can send it. At the queue's bound enqueue does
// what whenFull says.
func (s *Session) enqueue(t *Turn, q *queue.Queue, it queue.Slot, from Group) {
	if s.full(t, q) && !s.makeRoom(t, q) {
		it.Message.Release()
		return
	}
	s.Orders++
	it.Order = s.Orders
	if s.sendAtOnce(t, q, &it) {
		return
	}
	it.Size = uint32(it.Message.Size())
	q.Open()
	s.Charges(q).Count(q, &it)
	s.Charges(q).Hold(q, &it)
	if q == &s.Routed && s.SID != 0 {
		it.Batch = queue.Unsaved
		it.Message.Keep()
		q.Push(it, it.Shared() || s.windowHasRoom())
		it.Seq = q.Tail - 1
		t.Saves = append(t.Saves, save{Session: s, group: from, SID: s.SID, Seq: it.Seq, Slot: it})
	} else {
		q.Push(it, true)
		s.Pump(t)
	}
	s.warn(t, q)
	s.shed(t)
}

// sendAtOnce is the short way for a session that ends with its connection and has
// nothing waiting: the message goes into the output, and the queue keeps no more
// than the place of its packet identifier. It returns false if the message must be
// queued. s.Mu is held.
func (s *Session) sendAtOnce(t *Turn, q *queue.Queue, it *queue.Slot) bool {
	c := s.Peer
	if c == nil || s.Persistent() || it.QoS != 1 || s.Inflight >= s.receiveMax ||
		!s.Routed.Empty() || !s.Direct.Empty() || q.Live+len(q.Strays) >= int(q.Span) || c.Transport.Full() {
		return false
	}
	it.Seq = q.Tail
	if q.Identify(it) {
		it.ID = 0
		return false
	}
	if s.send(t, c, q, it) {
		q.Sent(q.Push(*it, true))
	} else {
		it.Message.Release()
		s.uncountSlot(q, it)
	}
	return true
}

// Respond is sendAtOnce for a response to a request; true: it has taken over the
// reference.
func (s *Session) Respond(t *Turn, sub *Subscription, m *message.Message) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended || sub.Gone || sub.QoS == 0 || sub.ID != 0 || s.full(t, &s.Direct) {
		return false
	}
	it := queue.Slot{Message: m, QoS: 1, Order: s.Orders + 1}
	if !s.sendAtOnce(t, &s.Direct, &it) {
		return false
	}
	s.Orders++
	t.MarkDirty(s.Peer)
	return true
}

// Charges is where messages of the queue are counted and charged.
func (s *Session) Charges(q *queue.Queue) *queue.Charges {
	if q == &s.Direct {
		return &s.Env.directCharges
	}
	return &s.Env.routedCharges
}

// drop removes a slot, its message and its row. s.Mu is held.
func (s *Session) drop(q *queue.Queue, it *queue.Slot) {
	if it.Saved && s.SID != 0 {
		batch := s.deleteRow(it.Seq)
		if it.ID != 0 && q.Strays[it.ID] == it {
			q.Cooling = append(q.Cooling, queue.Cooling{ID: it.ID, Batch: batch})
		}
	}
	s.remove(q, it)
	q.Trim()
}

// deleteRow deletes a message's row; s.Mu is held.
func (s *Session) deleteRow(seq uint64) journal.Seq {
	var key [18]byte
	a := s.Env.Journal.Begin()
	a.Delete(rows.AppendQueueKey(key[:0], s.SID, seq))
	return a.End(nil)
}

// remove takes a slot out of the queue. The caller deletes its row, if it has one, and
// calls q.Trim afterwards; s.Mu is held.
func (s *Session) remove(q *queue.Queue, it *queue.Slot) {
	s.Charges(q).LetGo(q, it)
	s.uncountSlot(q, it)
	q.TakeOut(it)
}

// uncountSlot takes a slot without a message out of everything that counts it; s.Mu is
// held.
func (s *Session) uncountSlot(q *queue.Queue, it *queue.Slot) {
	if it.Number != 0 {
		s.Env.Payloads.Release(s.Env.Journal, it.Number)
	}
	s.Charges(q).Uncount(q, it)
	if it.Counted {
		s.Inflight--
	}
	if it.Notify {
		s.notices--
	}
}

// Pump sends what the client's Receive Maximum and the room in the connection's
// output allow, oldest first; s.Mu is held. It is called whenever one of these
// grows: after enqueueing, an acknowledgement, a drained output, a resume.
func (s *Session) Pump(t *Turn) {
	c := s.Peer
	if c == nil {
		return
	}
	for !c.Transport.Full() { // or Drained calls again
		q, it := s.nextToSend()
		if it == nil {
			break
		}
		switch {
		case it.Batch == queue.Unsaved:
			return // Commit calls again
		case it.State == queue.Released:
			if s.awaits(it.Batch) {
				return // Durable calls again
			}
			c.WriteAck(mqtt.PUBREL, it.ID, mqtt.Success, "")
			t.MarkDirty(c)
			q.Sent(it)
			continue
		case s.Inflight >= s.receiveMax:
			return
		case it.Message == nil:
			t.Feed = append(t.Feed, s)
			return // ResumeFeed calls again
		case q == &s.Routed && !s.mayLeave(it):
			return // Durable calls again
		case q == &s.Direct:
			q.Identify(it)
		}
		if s.send(t, c, q, it) {
			q.Sent(it)
		} else {
			s.drop(q, it)
		}
	}
	if s.lacksNext() {
		t.Feed = append(t.Feed, s)
	}
}

// nextToSend gives the older of the two queues' candidates.
func (s *Session) nextToSend() (*queue.Queue, *queue.Slot) {
	routed, direct := s.Routed.Candidate(), s.Direct.Candidate()
	switch {
	case routed == nil && direct == nil:
		return nil, nil
	case routed == nil || direct != nil && direct.Order < routed.Order:
		return &s.Direct, direct
	default:
		return &s.Routed, routed
	}
}

// mayLeave says whether what a routed message needs to be on disk before it is
// sent is there, and gives it its packet identifier; s.Mu is held.
//
// What must be on disk:
//
//   - at QoS 2 the message itself: otherwise, after a crash, its publisher would send it
//     again, and the client would get it twice;
//   - the packet identifier, if it does not follow from the sequence number;
//   - the mark, which says that the message may have been sent: after a crash no other
//     member may get it [MQTT-4.8.2-5], and DUP is set. The mark is so far ahead that
//     messages rarely wait for it.
func (s *Session) mayLeave(it *queue.Slot) bool {
	for q := &s.Routed; len(q.Cooling) > 0 && s.onDiskBy(q.Cooling[0].Batch); {
		q.Cooling = q.Cooling[1:]
	}
	changed := s.Routed.Identify(it)
	if s.SID == 0 {
		return true
	}
	if changed {
		a := s.Env.Journal.Begin()
		a.Set(rows.QueueKey(s.SID, it.Seq), it.AppendRow(nil, it.ID, it.Number, s.Env.Wall()))
		it.Batch = a.End(nil)
	}
	if it.State == queue.Pending && (it.QoS == 2 || it.ID != s.Routed.PacketID(it.Seq)) && s.awaits(it.Batch) {
		return false
	}
	return s.advanceMark(it.Seq)
}

// markAhead is how many messages ahead of those sent the mark is set, so that it
// is written once for half of them. The messages between the two are sent with DUP
// after a crash, although they have not been sent before.
//
// After a crash the sequence goes on from the mark. The step must not divide the number
// of packet identifiers: otherwise the sequence would, after a few crashes, reach the
// identifiers of deliveries that are still under way.
const markAhead = 5003

// advanceMark moves the mark ahead if seq is near it, and says whether the mark on disk
// is beyond seq; s.Mu is held.
func (s *Session) advanceMark(seq uint64) bool {
	q := &s.Routed
	if q.Marked < q.Mark && !s.onDiskBy(q.MarkBatch) {
		if seq < q.Marked {
			return true
		}
		return !s.awaits(q.MarkBatch)
	}
	q.Marked = q.Mark
	if seq+markAhead/2 < q.Mark {
		return true
	}
	q.Mark = seq + markAhead
	a := s.Env.Journal.Begin()
	a.Set(rows.SessionKey(s.ID), s.row(q.Mark))
	q.MarkBatch = a.End(nil)
	return seq < q.Marked || !s.awaits(q.MarkBatch)
}

// mayHaveSent gives the sequence number before which messages may have been sent;
// s.Mu is held.
func (s *Session) mayHaveSent() uint64 { return max(s.Routed.Next, s.Routed.SentTo) }

// send writes one PUBLISH, or says false if it mustn't be sent any more: it has
// expired, or is larger than the client takes.
func (s *Session) send(t *Turn, c *peer.Peer, q *queue.Queue, it *queue.Slot) bool {
	m := it.Message
	d := &t.delivery
	*d = mqtt.Delivery{
		QoS: it.QoS, Retain: it.Retain, Dup: it.Dup, PacketID: it.ID,
		Topic: m.Topic(), Props: m.Props(), Payload: m.Payload(), SubscriptionIDs: it.SubIDs,
	}
	if s.Judge != nil && !s.Judge(m.Topic(), q == &s.Direct) {
		return false
	}
	if m.ExpiresAt != 0 {
		left := message.SecondsLeft(m.ExpiresAt, s.Env.Now())
		if left == 0 && it.State == queue.Pending && !it.Dup {
			s.Env.Counters.Expired.Add(1)
			return false
		}
		d.HasExpiry, d.Expiry = true, max(left, 1)
	}
	if !c.Deliver(d, m) {
		return false
	}
	t.messagesOut++
	it.State = queue.Sent
	it.Counted = true
	s.Inflight++
	if !s.Persistent() && !it.Shared() {
		// No client will ask for it again.
		if it.Held {
			s.Charges(q).LetGo(q, it)
			s.Charges(q).Uncount(q, it)
		} else {
			m.Release()
			it.Message = nil
		}
	}
	return true
}

// awaits says whether a batch isn't on disk yet, and if so arranges for Durable
// to be called; s.Mu is held.
func (s *Session) awaits(batch journal.Seq) bool {
	if s.onDiskBy(batch) {
		return false
	}
	if !s.awaiting {
		s.awaiting = s.Env.Journal.Await(batch, s)
	}
	return s.awaiting
}

// onDiskBy says whether the batch is on disk; s.Mu is held.
func (s *Session) onDiskBy(batch journal.Seq) bool {
	return batch <= s.DurableTo || batch <= s.Env.Journal.Complete()
}

// Durable implements journal.Waiter: QoS 2 messages leave once they are on disk.
func (s *Session) Durable(batch journal.Seq) {
	t := s.Env.LockDeferred()
	defer s.Env.UnlockDeferred()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.awaiting = false
	s.DurableTo = batch // although it isn't complete before its callbacks have run
	s.Pump(t)
	s.Evict()
	if s.Peer != nil {
		t.MarkDirty(s.Peer)
	}
}

// Acknowledged is the client's PUBACK, PUBREC or PUBCOMP. ok is false if no
// delivery with this identifier awaits it. more: ResumeFeed has something to do now. A
// PUBREL in answer must wait for batch.
func (s *Session) Acknowledged(t *Turn, c *peer.Peer, typ mqtt.Type, a *mqtt.Ack) (ok, more bool, batch journal.Seq) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Peer != c {
		return true, false, 0 // taken over meanwhile
	}
	q := &s.Routed
	if a.PacketID >= queue.DirectBase {
		q = &s.Direct
	}
	it := q.Find(a.PacketID)
	switch {
	case it == nil:
		return false, false, 0
	case typ == mqtt.PUBACK && it.QoS == 1 && it.State == queue.Sent,
		typ == mqtt.PUBCOMP && it.State == queue.Released,
		typ == mqtt.PUBREC && it.QoS == 2 && a.Code.Failed():
		s.drop(q, it)
	case typ == mqtt.PUBREC && it.QoS == 2:
		s.release(q, it)
		return true, false, it.Batch
	default:
		return false, false, 0
	}
	if s.Routed.Empty() && s.Direct.Empty() { // nearly always: the client keeps up
		return true, s.passedOver || s.Replays != nil, 0
	}
	s.Pump(t)
	return true, s.passedOver || s.Replays != nil || s.lacksNext(), 0
}

// release notes that the client has a QoS 2 message: only PUBCOMP is awaited. PUBREL is
// sent when that is on disk: with PUBREL the client forgets the packet identifier, and
// would take the message for a new one if it were sent again after a crash.
func (s *Session) release(q *queue.Queue, it *queue.Slot) {
	fresh := it.State != queue.Released
	it.State = queue.Released
	s.Charges(q).LetGo(q, it)
	if fresh && it.Saved && s.SID != 0 {
		a := s.Env.Journal.Begin()
		a.Set(rows.QueueKey(s.SID, it.Seq), q.ReleasedRow(it))
		it.Batch = a.End(nil)
	}
	if it.Number != 0 {
		s.Env.Payloads.Release(s.Env.Journal, it.Number)
		it.Number = 0
	}
}

// Resume begins a connection of the session: what was under way goes out
// again, in order, under the new Receive Maximum. s.Mu is held.
func (s *Session) Resume(t *Turn, c *peer.Peer) {
	s.Peer = c
	s.Inflight = 0
	s.receiveMax = c.ReceiveMax
	s.Routed.Rewind()
	s.Direct.Rewind()
	s.Pump(t)
}

// ClientLeft is called when the client has gone: what it was sent will be sent again,
// and what is on disk needn't be in memory. s.Mu is held.
func (s *Session) ClientLeft() {
	s.Inflight = 0
	s.Routed.Rewind()
	s.Direct.Rewind()
	s.Evict()
	s.Routed.Shrink()
	s.Direct.Shrink()
	if len(s.Received) == 0 {
		s.Received = nil
		s.CreditReceived()
	}
}

// Discard lets go of everything queued; s.Mu is held.
func (s *Session) Discard() {
	for _, q := range []*queue.Queue{&s.Routed, &s.Direct} {
		if q.Unused() {
			continue
		}
		q.Each(func(it *queue.Slot) {
			s.Charges(q).LetGo(q, it)
			s.uncountSlot(q, it)
		})
		s.Charges(q).Level(q, -int64(q.Middle.Count), -q.Middle.Bytes)
		q.Clear()
	}
}

// Notify queues a handler's notification, whose reference it takes over, for the client
// of connection c. It returns false if the notification is lost: c is not the session's
// connection any more, or the session has as many notifications as it may.
func (s *Session) Notify(t *Turn, c *peer.Peer, m *message.Message) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Peer != c || int(s.notices) >= s.Env.Limits.MaxNotifications {
		m.Release()
		return false
	}
	if !c.Fits(m) {
		s.Env.Counters.TooLarge.Add(1)
		m.Release()
		return true
	}
	s.notices++
	s.enqueue(t, &s.Direct, queue.Slot{Message: m, QoS: 1, Notify: true}, nil)
	if n := len(t.Notified); n == 0 || t.Notified[n-1] != c {
		t.Notified = append(t.Notified, c)
	}
	return true
}

// IdleAway says whether the client is away and the session holds nothing that was
// acknowledged; s.Mu is held.
func (s *Session) IdleAway() bool {
	return s.Peer == nil && s.Away != 0 && s.Routed.Messages == 0 && s.Direct.Messages == 0 && len(s.Received) == 0
}

// NotifiedAtOnce is how many connections are given a notification before they
// are flushed: the first of thousands of clients shouldn't wait for the last, and
// flushers can write on other processors meanwhile.
const NotifiedAtOnce = 256
