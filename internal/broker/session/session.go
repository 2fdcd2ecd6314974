package session

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/principals"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/timers"
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Session is what the broker keeps for one client ID: subscriptions, inflight and waiting
// deliveries, received QoS 2 identifiers, the will. It ends with its connection, or when
// its expiry interval has passed after that. A server may have very many sessions, so a
// session makes its maps only when they get a first entry, and small fields stand together.
type Session struct {
	Env   *Env
	ID    string
	owner *string // nil: it belongs to clients that have not proven who they are

	// Held while the session ends, or its delayed will is published. A CONNECT that
	// resumes the session waits for it.
	Lifecycle lockrank.Mutex[lockrank.Lifecycle]

	Mu lockrank.Mutex[lockrank.Session] // guards everything below

	Peer      *peer.Peer               // nil while the client is away
	Detaching *peer.Peer               // the former Peer, whose reader still uses the session; nil: none
	SID       uint64                   // number on disk; 0: not on disk
	Subs      map[string]*Subscription // nil: none yet
	Place     principals.SessionPlace  // among the sessions of its principal, or of the address that the client came from last
	Received  map[uint16]*peer.Peer    // QoS 2 packet identifiers from the client between PUBREC and PUBCOMP, and the connection they came on
	DurableTo journal.Seq              // batches up to this one are on disk
	Will      *will.Will               // of the connection, or a delayed one; nil: none
	ExpireAt  *timers.Timer            // while the client is away: ends the session
	WillAt    *timers.Timer            // while the client is away: publishes the will
	Away      int64                    // since when the client is away, on the wall clock in ms; 0: it is connected
	Routed    queue.Queue              // messages that were published to topics
	Direct    queue.Queue              // messages that a handler sent to this client
	Orders    uint64                   // number of messages enqueued so far
	// Judge says whether a queued message may still be sent: the client's permissions may
	// have changed since it was queued. direct: it is in the queue Direct, otherwise in
	// Routed. nil: every message may be sent.
	Judge    func(topic []byte, direct bool) bool
	Replays  *Replays        // retained messages that new subscriptions are still owed; nil: none
	promised *queue.Promised // of Routed, where publishes are rejected when it is full; nil: none so far

	FilterBytes    int32  // of the filters in Subs
	ReceivedRoom   int32  // number of entries of Received for which memory is charged
	Inflight       int32  // slots counted against receiveMax
	receiveMax     int32  // the client's Receive Maximum, or limits.MaxInflight if that is smaller
	notices        int32  // notifications in Direct
	Expiry         uint32 // Session Expiry Interval in seconds; 0: the session ends with its connection
	AwayByWall     bool   // Away was read from disk: it follows the wall clock forward
	Ended          bool   // the session is no longer in the registry
	awaiting       bool   // the journal will call Durable, which calls Pump
	loading        bool   // a goroutine reads messages back from the disk
	passedOver     bool   // a message of a shared subscription found no room here
	Replaying      bool   // a goroutine sends the messages of Replays
	purging        bool   // a goroutine deletes expired messages
	queueFull      byte   // what the client chose for a full queue: an index of limits.QueueFulls; 0: nothing
	requests       bool   // the client has sent a request to a handler on this connection: a place in its Receive Maximum is kept for the responses
	warned, logged bool   // warned: the queue on disk is near its bound; logged: the log has a line about it
}

// New makes a session for a client ID. It belongs to the principal owner (see
// access.Identity); empty: to clients that have not proven who they are.
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

// Owner is the principal to which the session belongs; empty: it belongs to clients that
// have not proven who they are. It does not change.
func (s *Session) Owner() string {
	if s.owner == nil {
		return ""
	}
	return *s.owner
}

// OwnerRef is the Owner for messages of the client, which many share; nil: the client has
// not proven who it is.
func (s *Session) OwnerRef() *string { return s.owner }

// Subscribe adds a subscription to a filter that the session does not have; s.Mu is held,
// or no other goroutine knows the session yet. The caller has counted it for the principal.
func (s *Session) Subscribe(sub *Subscription) {
	if s.Subs == nil {
		s.Subs = make(map[string]*Subscription)
	}
	s.Subs[sub.Filter] = sub
	s.FilterBytes += int32(len(sub.Filter))
}

// Unsubscribe takes a subscription out of the session; s.Mu is held. The caller calls
// Router.Remove with it.
func (s *Session) Unsubscribe(sub *Subscription) {
	delete(s.Subs, sub.Filter)
	s.FilterBytes -= int32(len(sub.Filter))
	sub.Gone = true
	sub.Share.End()
	s.Place.ReturnSubscriptions(1)
}

// Persistent says whether the session outlives its connection; s.Mu is held.
func (s *Session) Persistent() bool { return s.Expiry > 0 }

// enqueue appends a QoS 1 or 2 message to the queue and takes over one reference to it.
// from is the shared subscription that passed the message on; nil: none did. s.Mu is held.
// A message that belongs on disk is sent when the turn has committed it, any other as soon
// as Pump can send it. At the queue's bound enqueue does what whenFull says.
func (s *Session) enqueue(t *Turn, q *queue.Queue, it queue.Slot, from Group) {
	if q == &s.Routed && t.Promises.Any() && s.whenFull() == limits.Reject {
		t.Promises.Keep(s, s.promised)
	}
	if s.full(t, q) && !s.admitWhenFull(t, q) {
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

// sendAtOnce sends a QoS 1 message without queueing it, if the session ends with its
// connection and no message waits: the message is appended to the output, and the queue
// keeps only a slot for its packet identifier. It returns false if the message must be
// queued, such as one that its shared subscription may take back. s.Mu is held.
func (s *Session) sendAtOnce(t *Turn, q *queue.Queue, it *queue.Slot) bool {
	c := s.Peer
	if c == nil || s.Persistent() || it.Shared() || it.QoS != 1 || s.Inflight >= s.places(q) ||
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

// Respond is sendAtOnce for a response to a request, on the subscription sub. If it returns
// true it has taken over the caller's reference to m. Deliver (deliver.go) is for the rest.
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

// Charges counts the messages of the queue and charges the pool with them.
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
	s.Remove(q, it)
	q.Trim()
}

// deleteRow deletes a message's row; s.Mu is held.
func (s *Session) deleteRow(seq uint64) journal.Seq {
	var key [18]byte
	a := s.Env.Journal.Begin()
	a.Delete(rows.AppendQueueKey(key[:0], s.SID, seq))
	return a.End(nil)
}

// Remove takes a slot out of the queue. The caller deletes its row, if it has one, and
// calls q.Trim afterwards; s.Mu is held.
func (s *Session) Remove(q *queue.Queue, it *queue.Slot) {
	s.Charges(q).LetGo(q, it)
	s.uncountSlot(q, it)
	q.TakeOut(it)
}

// uncountSlot takes a slot without a message out of everything that counts it; s.Mu is held.
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

// Pump sends messages, oldest first, as far as the client's Receive Maximum and the room
// in the connection's output allow; s.Mu is held. It is called whenever there may be more
// to send: after enqueueing (a message with a row: when Commit has appended the row), when a
// batch that a delivery waits for is durable (Durable), after an acknowledgement, a fill
// from the disk, a drained output, a resume.
func (s *Session) Pump(t *Turn) {
	c := s.Peer
	if c == nil {
		return
	}
	for !c.Transport.Full() { // if it is full, Drained calls Pump again
		q, it := s.nextToSend()
		if it == nil {
			break
		}
		switch {
		case it.Batch == queue.Unsaved:
			return // Commit calls Pump again
		case it.State == queue.Released:
			if s.awaits(it.Batch) {
				return // Durable calls Pump again
			}
			c.WriteAck(mqtt.PUBREL, it.ID, mqtt.Success, "")
			t.MarkDirty(c)
			q.Sent(it)
			continue
		case s.Inflight >= s.places(q):
			return
		case it.Message == nil:
			t.Feed = append(t.Feed, s)
			return // ResumeFeed calls Pump again
		case q == &s.Routed && !s.readyToSend(it):
			return // Durable calls Pump again
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

// nextToSend returns the older of the two queues' candidates; nil: there is none. The last
// place in the client's Receive Maximum is the queue Direct's, if it has one.
func (s *Session) nextToSend() (*queue.Queue, *queue.Slot) {
	routed, direct := s.Routed.Candidate(), s.Direct.Candidate()
	switch {
	case routed == nil && direct == nil:
		return nil, nil
	case routed == nil || direct != nil && (direct.Order < routed.Order || s.Inflight >= s.receiveMax-1):
		return &s.Direct, direct
	default:
		return &s.Routed, routed
	}
}

// places is how many inflight deliveries there may be for the messages of a queue to be sent. A client
// that sends requests to a handler may acknowledge messages only after it has got a response, so there
// is a place for it: beyond limits.MaxInflight, or messages leave one free. s.Mu is held.
func (s *Session) places(q *queue.Queue) int32 {
	switch more := s.Peer.TakesMore; {
	case s.requests && more && q == &s.Direct:
		return s.receiveMax + 1
	case s.requests && !more && q == &s.Routed:
		return max(1, s.receiveMax-1)
	}
	return s.receiveMax
}

// NoteRequests notes that the client sends requests to a handler, which it need not have said in CONNECT.
func (s *Session) NoteRequests() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.requests = true
}

// readyToSend gives a routed message its packet identifier, and says whether all is on disk
// that must be there before it is sent; if not, the journal will call Durable. s.Mu is held.
//
// What must be on disk:
//
//   - if a transaction has published the message, the batch of the transaction, also where
//     the session is not on disk;
//   - at QoS 2 the message itself: otherwise, after a crash, its publisher would send it
//     again, and the client would get it twice;
//   - the packet identifier, if it does not follow from the sequence number;
//   - the mark, which says that the message may have been sent: after a crash no other
//     member of a shared subscription may get it [MQTT-4.8.2-5], and DUP is set. The mark
//     is so far ahead that messages rarely wait for it.
func (s *Session) readyToSend(it *queue.Slot) bool {
	for q := &s.Routed; len(q.Cooling) > 0 && s.onDiskBy(q.Cooling[0].Batch); {
		q.Cooling = q.Cooling[1:]
	}
	if it.Message.AfterBatch != 0 && s.awaits(it.Message.AfterBatch) {
		return false
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

// markAhead is how many messages ahead of the last one sent the mark is set. So the mark is
// written once for markAhead/2 messages. After a crash the messages before the mark are
// sent with DUP, although some of them have not been sent before.
//
// After each crash the sequence continues at the mark, up to markAhead further. If markAhead
// divided the number of packet identifiers, a few crashes would lead back to the same
// identifiers, which may still be inflight.
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

// mayHaveSent is the sequence number before which messages may have been sent; s.Mu is held.
func (s *Session) mayHaveSent() uint64 { return max(s.Routed.Next, s.Routed.SentTo) }

// send appends one PUBLISH to the output. It returns false if the message must not be
// sent: it has expired, it is larger than the client's Maximum Packet Size, or the client
// may no longer receive it.
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
	t.out.Add(d.QoS, len(d.Payload))
	it.State = queue.Sent
	it.Counted = true
	s.Inflight++
	if !s.Persistent() && !it.Shared() {
		// The session ends with the connection, so the message is never sent again.
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

// awaits returns false if a batch is on disk. Otherwise it returns true, and the journal
// will call Durable; s.Mu is held.
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

// Durable implements journal.Waiter. It sends what waited for the batch: QoS 2 messages,
// PUBRELs, and messages whose packet identifier or mark had to be on disk. Then it evicts.
func (s *Session) Durable(batch journal.Seq) {
	t := s.Env.LockDeferred()
	defer s.Env.UnlockDeferred()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.awaiting = false
	s.DurableTo = batch // Journal.Complete includes it only after all of its callbacks
	s.Pump(t)
	s.Evict()
	if s.Peer != nil {
		t.MarkDirty(s.Peer)
	}
}

// Acknowledged handles the client's PUBACK, PUBREC or PUBCOMP. known is false if c has the
// session and no inflight delivery with this identifier awaits the packet; after a takeover
// it is true. more: the caller must call ResumeFeed. A PUBREL in answer to a PUBREC must
// wait for batch.
func (s *Session) Acknowledged(t *Turn, c *peer.Peer, typ mqtt.Type, a *mqtt.Ack) (known, more bool, batch journal.Seq) {
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

// release notes that the client has received a QoS 2 message, so that only its PUBCOMP is
// awaited. The caller sends PUBREL when that is on disk: on PUBREL the client forgets the
// packet identifier, and would take the message for a new one if it were sent again after
// a crash.
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

// Resume begins a connection of the session: inflight messages are sent again, in order,
// under the new Receive Maximum. s.Mu is held.
func (s *Session) Resume(t *Turn, c *peer.Peer) {
	s.Peer = c
	s.Inflight, s.requests = 0, c.Requests
	s.receiveMax = c.ReceiveMax
	s.Routed.Rewind()
	s.Direct.Rewind()
	s.Pump(t)
}

// ClientLeft is called when the connection has ended: inflight messages will be sent
// again, and messages that are on disk are released from memory. s.Mu is held.
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

// Discard releases all queued messages. The caller deletes their rows. s.Mu is held.
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
	if s.Peer != c || int(s.notices) >= s.Env.Limits().MaxNotifications {
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

// NotifiedAtOnce is how many connections get a notification before the caller hands them
// to the flushers. So the first of thousands of clients does not wait for the last, and
// the flushers write on other processors meanwhile.
const NotifiedAtOnce = 256
