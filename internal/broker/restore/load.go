// Package restore makes sessions, queues, shared subscriptions and retained messages of
// what the broker has on disk, when the server starts.
package restore

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/routing"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/share"
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// loader restores the broker's state from disk, before the broker accepts connections.
type loader struct {
	b          *routing.Router
	loaded     *Loaded
	wall       int64                       // what to add to the broker's clock to get the wall clock, in ms
	sessions   map[uint64]*session.Session // by SID
	groups     map[uint64]*share.Group     // by the SID of their backlogs
	payloads   map[uint64]stored           // messages in p rows, by number
	publishers map[string]string           // of retained messages: one string for each client
	owners     map[string]*string          // to which principals these belonged
	orphans    [][]byte                    // keys of rows to delete: their session or subscription has ended, or no row refers to them
	orphaned   []orphaned

	claimsOf *session.Session                          // whose rows are being read
	claims   [queue.RoutedBase + queue.RoutedSpan]bool // of claimsOf, by packet identifier: see claim
}

// orphaned is a message of a shared subscription in the queue of a session that does not
// send it: the loader gives it back to its group. Either it has not been sent, so that any
// member may get it, or the session has ended: one batch moved the message from the
// backlog to the session, and the crash came before the batch that would have moved it
// back (Session.saved).
type orphaned struct {
	group   *share.Group
	message *message.Message
	key     []byte // of its row in the session's queue
}

// Loaded is what Load found on disk. The broker registers the sessions and starts their
// timers.
type Loaded struct {
	Sessions []*session.Session
	Delayed  []*session.Session // those of Sessions that have a will
	Wills    []*will.Will       // of sessions that have ended: the broker publishes them now
}

// Load restores sessions, subscriptions, queues, retained messages and wills, and deletes
// rows that belong to none of them.
//
// A client that was connected when the server was killed counts as away from now on: its
// Session Expiry Interval and its Will Delay Interval begin now. Messages that the server
// may have sent to it, and that it has not acknowledged, will be sent again with DUP.
func Load(b *routing.Router) (*Loaded, error) {
	l := &loader{
		b: b, loaded: new(Loaded), wall: b.Wall(), sessions: map[uint64]*session.Session{}, groups: map[uint64]*share.Group{},
		payloads: map[uint64]stored{}, publishers: map[string]string{}, owners: map[string]*string{},
	}
	var bad error
	errs := rows.Visit(l, b.Journal.IterateOnce, func(_ []byte, what string) bool {
		bad = errors.New(what)
		return false
	})
	if err := errors.Join(append(errs, bad)...); err != nil {
		return nil, fmt.Errorf("reading the broker's data: %w", err)
	}
	l.openQueues()
	return l.loaded, nil
}

// sessionOf returns the session to which the row of a key belongs. If the session has
// ended it returns nil, and the row will be deleted.
func (l *loader) sessionOf(sid uint64, key []byte) *session.Session {
	s := l.sessions[sid]
	if s == nil {
		l.orphans = append(l.orphans, key)
	}
	return s
}

// numbered notes that a number is in use and must not be assigned again.
func (l *loader) numbered(n uint64) { l.b.LastSID.Store(max(l.b.LastSID.Load(), n)) }

func (l *loader) Session(client string, r rows.Session) error {
	if int(r.QueueFull) >= len(limits.QueueFulls) {
		return fmt.Errorf("its setting for a full queue has the unknown value %d", r.QueueFull)
	}
	s := session.New(l.b.Env, client, r.Owner)
	s.Routed.Start(0)
	s.SID, s.Expiry, s.Away, s.Routed.SentTo = r.SID, r.Expiry, r.Away, r.Sent
	s.ChooseQueueFull(r.QueueFull)
	s.AwayByWall = true
	if s.Away == 0 {
		s.Away, s.AwayByWall = l.b.WallMs(), false
	}
	l.sessions[s.SID] = s
	l.loaded.Sessions = append(l.loaded.Sessions, s)
	l.numbered(s.SID)
	return nil
}

func (l *loader) Subscription(sid uint64, r rows.Subscription) error {
	s := l.sessionOf(sid, rows.SubscriptionKey(sid, r.Filter))
	if s == nil {
		return nil
	}
	sub := &session.Subscription{Session: s, Filter: r.Filter, QoS: r.QoS, NoLocal: r.NoLocal, RetainAsPublished: r.RetainAsPublished, ID: r.ID}
	s.Subscribe(sub)
	l.b.Memory.Charge(memory.Subscriptions, sub.Memory())
	group, rest := topic.GroupOf(sub.Filter)
	l.b.Insert(sub, group, rest)
	return nil
}

func (l *loader) Group(group string, sid uint64) error {
	l.numbered(sid)
	g := l.b.Groups[group]
	if g == nil { // no session subscribes to it any more
		l.orphans = append(l.orphans, rows.GroupKey(group))
		return nil
	}
	g.SID = sid
	l.groups[sid] = g
	return nil
}

func (l *loader) Payload(n uint64, m rows.Message) error {
	l.payloads[n] = l.storedOf(&m)
	l.b.Payloads.Found(n)
	return nil
}

func (l *loader) Queued(sid, seq uint64, r *rows.Queued) error {
	if g := l.groups[sid]; g != nil {
		return l.queuedForGroup(g, seq, r)
	}
	key := rows.QueueKey(sid, seq)
	s := l.sessionOf(sid, key)
	if s == nil {
		return l.orphan(key, r)
	}
	it := queue.SlotOf(r)
	it.Seq, it.Saved = seq, true
	var m stored
	if it.State != queue.Released {
		var err error
		if m, err = l.message(r); err != nil {
			return err
		}
		it.Size = uint32(m.size)
	}
	if r.Shared != "" {
		if sub := s.Subs[r.Shared]; sub != nil && sub.Group != nil {
			it.Share = sub.Share
		}
	}
	maySent := seq < s.Routed.SentTo && (l.claim(s, &it) || it.ID != 0 || it.State == queue.Released)
	if it.Shared() && !maySent { // any member may get it
		return l.orphan(key, r)
	}
	if r.Number != 0 {
		l.b.Payloads.Refer(r.Number, m.size)
	}
	q := &s.Routed
	q.Tail = seq + 1
	s.Charges(q).Count(q, &it)
	s.Orders++
	it.Order = s.Orders
	if it.State != queue.Released && it.ID == 0 && !it.Shared() {
		q.Middle.Add(seq, int64(it.Size))
		q.Middle.Order = it.Order
		q.Middle.ExpiresAt(m.expiresAt)
		return nil
	}
	// An inflight delivery: Find must find it by its identifier, or its group may take it
	// back.
	it.Dup = true
	if it.Shared() {
		var err error
		if it.Message, err = l.b.Pages.Message(r); err != nil {
			return err
		}
		s.Charges(q).Hold(q, &it)
	}
	if it.State == queue.Pending {
		it.State = queue.Sent
	}
	if !q.Carry(it) {
		return errors.New("another delivery has the same packet identifier")
	}
	return nil
}

// claim says whether a message may have been sent with the packet identifier in its row
// or, if the row has none, with the one that follows from its sequence number. That is not
// so if an earlier message of the session, which is still in the queue, has the same
// identifier: then the message would have got another identifier, which is written to its
// row before the message is sent.
func (l *loader) claim(s *session.Session, it *queue.Slot) bool {
	if l.claimsOf != s {
		l.claimsOf = s
		clear(l.claims[:])
	}
	id := it.ID
	if id == 0 {
		id = s.Routed.PacketID(it.Seq)
	}
	if l.claims[id] {
		return false
	}
	l.claims[id] = true
	return true
}

// stored is what the loader keeps in memory of a message on disk.
type stored struct {
	size      int   // as Message.Size
	expiresAt int64 // on the broker's clock in ms; 0: never
}

// storedOf makes the stored of a row's message.
func (l *loader) storedOf(m *rows.Message) stored {
	return stored{size: len(m.Body), expiresAt: message.ExpiryOf(m, l.wall)}
}

// message returns the stored of a queued message, which may be in a p row.
func (l *loader) message(r *rows.Queued) (stored, error) {
	if r.Number == 0 {
		return l.storedOf(&r.Message), nil
	}
	m, there := l.payloads[r.Number]
	if !there {
		return m, fmt.Errorf("its message %d is missing", r.Number)
	}
	return m, nil
}

// opened prepares a session's queue for use, after all of its rows have been read.
func (l *loader) opened(s *session.Session) {
	q := &s.Routed
	if q.SentTo == rows.UnknownSent {
		q.SentTo = q.Tail
	}
	// Sequence numbers of messages that have been sent and acknowledged are not used again.
	q.Tail = max(q.Tail, q.SentTo)
	m := q.Middle
	first := q.Tail
	if m.Count > 0 {
		first = m.From
	}
	q.Front.Reset(first)
	q.Next = first
	q.Back.Reset(q.Tail)
	if q.Middle.To = q.Tail; m.Count == 0 {
		q.Middle.From = q.Tail
	}
}

// orphan notes an orphaned message, if it came from a shared subscription that still
// exists.
func (l *loader) orphan(key []byte, r *rows.Queued) error {
	if r.Shared == "" {
		return nil
	}
	name, rest := topic.GroupOf(r.Shared)
	g := l.b.Groups[name+"/"+rest]
	if g == nil {
		return nil
	}
	m, err := l.b.Pages.Message(r)
	if err == nil {
		l.orphaned = append(l.orphaned, orphaned{g, m, key})
	}
	return err
}

// queuedForGroup adds a message to the backlog of a shared subscription.
func (l *loader) queuedForGroup(g *share.Group, seq uint64, r *rows.Queued) error {
	if r.Released {
		return errors.New("a released delivery in the backlog of a shared subscription")
	}
	m, err := l.message(r)
	if err != nil {
		return err
	}
	g.Restore(seq, m.size)
	return nil
}

func (l *loader) Received(sid uint64, id uint16) error {
	if s := l.sessionOf(sid, rows.ReceivedKey(sid, id)); s != nil {
		s.Receive(nil, id)
	}
	return nil
}

// Owed restores which retained messages a subscription is still owed.
func (l *loader) Owed(sid, n uint64, owed rows.Owed) error {
	key := rows.OwedKey(sid, n)
	s := l.sessionOf(sid, key)
	if s == nil {
		return nil
	}
	l.numbered(n)
	l.b.Retained.StampedTo(owed.Since)
	sub := s.Subs[owed.Filter]
	if sub == nil { // a crash came after the deletion of the subscription, before that of this row
		l.orphans = append(l.orphans, key)
		return nil
	}
	sub.Replay = &session.Replay{Sub: sub, Owed: owed, Key: key} // replaces a stale one, of an earlier SUBSCRIBE to the filter
	s.AddReplays(sub.Replay)
	return nil
}

// publisher returns one string for all retained messages of a client, of which there may
// be very many.
func (l *loader) publisher(client string) string {
	if same, known := l.publishers[client]; known {
		return same
	}
	l.publishers[client] = client
	return client
}

// ownerRef returns the same string for the same owner, as publisher does; nil if there is
// none.
func (l *loader) ownerRef(owner string) *string {
	if owner == "" {
		return nil
	}
	ref := l.owners[owner]
	if ref == nil {
		ref = &owner
		l.owners[owner] = ref
	}
	return ref
}

func (l *loader) Retained(topic string, r *rows.Retained) error {
	m := message.KeptFromRow(&r.Message, l.wall)
	m.QoS, m.Retain, m.Stamp, m.Publisher, m.Owner = r.QoS, true, r.Stamp, l.publisher(r.Publisher), l.ownerRef(r.Owner)
	l.b.Retained.Restore(topic, m)
	return nil
}

func (l *loader) Will(n uint64, r *rows.Will) error {
	w := &will.Will{Message: message.FromRow(&r.Message, 0), Due: r.Due, Delay: r.Delay, Number: n}
	if len(r.Identity) > 0 {
		w.Identity = new(access.Identity)
		if err := json.Unmarshal(r.Identity, w.Identity); err != nil {
			return fmt.Errorf("decoding the identity of its client: %w", err)
		}
	}
	w.Message.QoS, w.Message.Retain, w.Message.Owner = r.QoS, r.Retain, l.ownerRef(w.Identity.OwnedBy())
	w.Charged = will.Memory(w.Message.Topic(), w.Message.Props(), w.Message.Payload())
	l.b.Memory.Charge(memory.Sessions, w.Charged)
	l.numbered(n)
	s := l.sessions[n]
	if s == nil { // the session ended before the crash, or with its connection
		l.loaded.Wills = append(l.loaded.Wills, w)
		return nil
	}
	w.Message.Publisher = s.ID
	if s.Will = w; s.Will.Due == 0 {
		s.Will.Due = s.Away + int64(s.Will.Delay)*1000
	}
	l.loaded.Delayed = append(l.loaded.Delayed, s)
	return nil
}

// openQueues prepares the queues for use, gives orphaned messages back to their groups, and
// deletes orphans.
func (l *loader) openQueues() {
	b := l.b
	for _, s := range l.sessions {
		s.Mu.Lock()
		l.opened(s)
		s.Mu.Unlock()
	}
	for n := range l.payloads {
		if !b.Payloads.Used(n) {
			l.orphans = append(l.orphans, rows.PayloadKey(n))
		}
	}
	b.Do(l.handBack)
}

// handBack gives orphaned messages back to their groups, and deletes orphans.
func (l *loader) handBack(t *session.Turn) {
	for _, o := range slices.Backward(l.orphaned) { // Requeue puts each before all others
		t.Deletes = append(t.Deletes, o.key)
		o.group.Requeue(t, o.message)
	}
	l.b.Commit(t, nil)
	l.deleteOrphans()
}

func (l *loader) deleteOrphans() {
	for len(l.orphans) > 0 { // in several batches, so that each is small
		n := min(len(l.orphans), 10_000)
		a := l.b.Journal.Begin()
		for _, key := range l.orphans[:n] {
			a.Delete(key)
		}
		a.End(nil)
		l.orphans = l.orphans[n:]
	}
}
