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
)

// loader restores what the broker had on disk, before it accepts connections.
type loader struct {
	b        *routing.Router
	loaded   *Loaded
	wall     int64
	sessions map[uint64]*session.Session // by sid
	groups   map[uint64]*share.Group     // by gid
	payloads map[uint64]stored           // what p rows hold, by number
	clients  map[string]string           // publishers of retained messages
	orphans  [][]byte                    // rows of sessions that have ended
	strays   []stray

	claimsOf *session.Session                          // whose rows are being read
	claims   [queue.RoutedBase + queue.RoutedSpan]bool // by packet identifier, see claim
}

// stray is a message of a shared subscription in the queue of a session that has ended:
// it went from the backlog to that session in one batch, and would have come back in the
// next (Session.saved). No other goroutine has it.
type stray struct {
	group   *share.Group
	message *message.Message
	key     []byte
}

// Loaded is what Load found on disk, for the broker to register and to start the clocks of.
type Loaded struct {
	Sessions []*session.Session
	Delayed  []*session.Session // of these, those with a will
	Wills    []*will.Will       // of sessions that have ended: they are to be published
}

// Load restores sessions, subscriptions, queues, retained messages and wills, and deletes
// rows that belong to none of them.
//
// A client that was connected when the server was killed is away since now: its
// session's expiry and its will's delay count from here. What it may have been
// sent and not acknowledged goes out again with DUP.
func Load(b *routing.Router) (*Loaded, error) {
	l := &loader{
		b: b, loaded: new(Loaded), wall: b.Wall(), sessions: map[uint64]*session.Session{}, groups: map[uint64]*share.Group{},
		payloads: map[uint64]stored{}, clients: map[string]string{},
	}
	var bad error
	errs := rows.Visit(l, b.Journal.IterateOnce, func(_ []byte, what string) bool {
		bad = errors.New(what)
		return false
	})
	if err := errors.Join(append(errs, bad)...); err != nil {
		return nil, fmt.Errorf("reading the broker's data: %w", err)
	}
	l.finish()
	return l.loaded, nil
}

// owner gives the session that a row belongs to; a row whose session has ended is noted
// for deletion.
func (l *loader) owner(sid uint64, key []byte) *session.Session {
	s := l.sessions[sid]
	if s == nil {
		l.orphans = append(l.orphans, key)
	}
	return s
}

// numbered notes a number that must not be given again.
func (l *loader) numbered(n uint64) { l.b.LastSID.Store(max(l.b.LastSID.Load(), n)) }

func (l *loader) Session(client string, r rows.Session) error {
	if int(r.QueueFull) >= len(limits.QueueFulls) {
		return fmt.Errorf("it asks for something unknown when its queue is full: %d", r.QueueFull)
	}
	s := session.New(l.b.Env, client, r.Owner)
	s.Routed.Start(0)
	s.SID, s.Expiry, s.Away, s.Routed.SentTo = r.SID, r.Expiry, r.Away, r.Sent
	s.Ask(r.QueueFull)
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
	s := l.owner(sid, rows.SubscriptionKey(sid, r.Filter))
	if s == nil {
		return nil
	}
	sub := &session.Subscription{Session: s, Filter: r.Filter, QoS: r.QoS, NoLocal: r.NoLocal, RetainAsPublished: r.RetainAsPublished, ID: r.ID}
	s.Subscribe(sub)
	l.b.Memory.Charge(memory.Subscriptions, sub.Memory())
	group, rest := session.SplitShare(sub.Filter)
	l.b.Insert(sub, group, rest)
	return nil
}

func (l *loader) Group(group string, gid uint64) error {
	l.numbered(gid)
	g := l.b.Groups[group]
	if g == nil { // its last member has gone
		l.orphans = append(l.orphans, rows.GroupKey(group))
		return nil
	}
	g.SID = gid
	l.groups[gid] = g
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
	s := l.owner(sid, key)
	if s == nil {
		return l.stray(key, r)
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
			it.Share = &sub.Share
		}
	}
	maySent := seq < s.Routed.SentTo && (l.claim(s, &it) || it.ID != 0 || it.State == queue.Released)
	if it.Shared() && !maySent { // it may go to any member
		return l.stray(key, r)
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
	// A delivery under way that is to be found by its identifier, or by its group.
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
		return errors.New("its packet identifier is another delivery's")
	}
	return nil
}

// claim says whether a message may have been sent with the packet identifier in its
// row, or the one that follows from its sequence number: none before it that is
// still there has that one.
// A message that found it in use was not sent before another one was in its row.
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

// stored is what has to be known of a message on disk.
type stored struct {
	size      int   // as Message.size
	expiresAt int64 // on the broker's clock in ms; 0: never
}

func (l *loader) storedOf(m *rows.Message) stored {
	return stored{size: len(m.Body), expiresAt: message.ExpiryOf(m, l.wall)}
}

// message gives what has to be known of the message of a row.
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

// opened makes a session's queue ready, now that all of it has been read.
func (l *loader) opened(s *session.Session) {
	q := &s.Routed
	if q.SentTo == rows.UnknownSent {
		q.SentTo = q.Tail
	}
	// Numbers of messages that have been sent and acknowledged aren't given again.
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

// stray notes a message whose session has ended and whose group has not.
func (l *loader) stray(key []byte, r *rows.Queued) error {
	if r.Shared == "" {
		return nil
	}
	name, rest := session.SplitShare(r.Shared)
	g := l.b.Groups[name+"/"+rest]
	if g == nil {
		return nil
	}
	m, err := l.b.Pages.Message(r)
	if err == nil {
		l.strays = append(l.strays, stray{g, m, key})
	}
	return err
}

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
	if s := l.owner(sid, rows.ReceivedKey(sid, id)); s != nil {
		s.Receive(nil, id)
	}
	return nil
}

// Owed goes on with the retained messages that a subscription had not been sent.
func (l *loader) Owed(sid, n uint64, owed rows.Owed) error {
	key := rows.OwedKey(sid, n)
	s := l.owner(sid, key)
	if s == nil {
		return nil
	}
	l.numbered(n)
	l.b.Retained.StampedTo(owed.Since)
	sub := s.Subs[owed.Filter]
	if sub == nil { // a crash came between the end of the subscription and that of the row
		l.orphans = append(l.orphans, key)
		return nil
	}
	sub.Replay = &session.Replay{Sub: sub, Owed: owed, Key: key} // a row before it was of an earlier SUBSCRIBE: it is stale
	s.AddReplays(sub.Replay)
	return nil
}

// shared gives the same string for the same client, who may have left very many
// retained messages.
func (l *loader) shared(client string) string {
	if same, known := l.clients[client]; known {
		return same
	}
	l.clients[client] = client
	return client
}

func (l *loader) Retained(topic string, r *rows.Retained) error {
	m := message.KeptFromRow(&r.Message, l.wall)
	m.QoS, m.Retain, m.Stamp, m.Publisher = r.QoS, true, r.Stamp, l.shared(r.Publisher)
	l.b.Retained.Restore(topic, m)
	return nil
}

func (l *loader) Will(n uint64, r *rows.Will) error {
	w := &will.Will{Message: message.FromRow(&r.Message, 0), Due: r.Due, Delay: r.Delay, Number: n}
	if len(r.By) > 0 {
		w.By = new(access.Identity)
		if err := json.Unmarshal(r.By, w.By); err != nil {
			return fmt.Errorf("the identity of a will: %w", err)
		}
	}
	w.Message.QoS, w.Message.Retain = r.QoS, r.Retain
	w.Charged = will.Memory(w.Message.Topic(), w.Message.Props(), w.Message.Payload())
	l.b.Memory.Charge(memory.Sessions, w.Charged)
	l.numbered(n)
	s := l.sessions[n]
	if s == nil { // the session has ended, by the crash at the latest
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

// finish makes the queues ready, and deletes rows of sessions that have ended.
func (l *loader) finish() {
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

// handBack gives messages of shared subscriptions back to their groups.
func (l *loader) handBack(t *session.Turn) {
	for _, s := range slices.Backward(l.strays) { // each goes to the front
		t.Deletes = append(t.Deletes, s.key)
		s.group.Requeue(t, s.message)
	}
	l.b.Commit(t, nil)
	l.deleteOrphans()
}

func (l *loader) deleteOrphans() {
	for len(l.orphans) > 0 { // in batches that don't keep others waiting
		n := min(len(l.orphans), 10_000)
		a := l.b.Journal.Begin()
		for _, key := range l.orphans[:n] {
			a.Delete(key)
		}
		a.End(nil)
		l.orphans = l.orphans[n:]
	}
}
