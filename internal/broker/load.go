package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"holdfast/internal/memory"
)

// loader restores what the broker had on disk, before it accepts connections.
type loader struct {
	b        *Broker
	wall     int64
	sessions map[uint64]*Session    // by sid
	groups   map[uint64]*shareGroup // by gid
	payloads map[uint64]stored      // what p rows hold, by number
	wills    []*Session
	clients  map[string]string // publishers of retained messages
	orphans  [][]byte          // rows of sessions that have ended
	strays   []stray

	claimsOf *Session                      // whose rows are being read
	claims   [routedBase + routedSpan]bool // by packet identifier, see claim
}

// stray is a message of a shared subscription in the queue of a session that has ended:
// it went from the backlog to that session in one batch, and would have come back in the
// next (Session.saved). Nobody else has it.
type stray struct {
	group   *shareGroup
	message *Message
	key     []byte
}

// load restores sessions, subscriptions, queues, retained messages and wills.
//
// A client that was connected when the server was killed is away since now: its
// session's expiry and its will's delay count from here. What it may have been
// sent and not acknowledged goes out again with DUP.
func (b *Broker) load() error {
	l := &loader{
		b: b, wall: b.wall(), sessions: map[uint64]*Session{}, groups: map[uint64]*shareGroup{},
		payloads: map[uint64]stored{}, clients: map[string]string{},
	}
	for _, part := range []struct {
		prefix byte
		what   string
		row    func(key, value []byte) error // key without the prefix
	}{
		{sessionPrefix, "session", l.session},
		{subscriptionPrefix, "subscription", l.subscription},
		{groupPrefix, "shared subscription", l.group},
		{payloadPrefix, "message", l.payload},
		{queuePrefix, "queued message", l.queued},
		{receivedPrefix, "received packet identifier", l.received},
		{owedPrefix, "retained messages owed", l.owed},
		{retainedPrefix, "retained message", l.retained},
		{willPrefix, "will", l.will},
	} {
		var bad error
		err := b.journal.IterateOnce([]byte{part.prefix, '|'}, []byte{part.prefix, '|' + 1}, func(key, value []byte) bool {
			if bad = part.row(key[2:], value); bad != nil {
				bad = fmt.Errorf("%s with key %q: %w", part.what, key, bad)
			}
			return bad == nil
		})
		if err == nil {
			err = bad
		}
		if err != nil {
			return fmt.Errorf("reading the broker's data: %w", err)
		}
	}
	l.finish()
	return nil
}

// keyNumber reads the number that a key has at this place.
func keyNumber(key []byte) uint64 { return binary.BigEndian.Uint64(key) }

// owner gives the session that a row belongs to, which begins its key; a row
// whose session has ended is noted for deletion.
func (l *loader) owner(prefix byte, key []byte) *Session {
	if len(key) < 8 {
		return nil
	}
	s := l.sessions[keyNumber(key)]
	if s == nil {
		l.orphan(prefix, key)
	}
	return s
}

func (l *loader) orphan(prefix byte, key []byte) {
	l.orphans = append(l.orphans, append([]byte{prefix, '|'}, key...))
}

func (l *loader) session(key, value []byte) error {
	r, err := decodeSessionRow(value)
	if err != nil {
		return err
	}
	s := newSession(l.b, string(key))
	s.routed.start(0)
	s.sid, s.expiry, s.away, s.sentTo = r.sid, r.expiry, r.away, r.sent
	if int(r.asked) >= len(queueFulls) {
		return errRow
	}
	s.ask(r.asked)
	s.awayByWall = true
	if s.away == 0 {
		s.away, s.awayByWall = l.b.wallMs(), false
	}
	l.sessions[s.sid] = s
	l.b.enter(s, "")
	l.b.lastSID.Store(max(l.b.lastSID.Load(), s.sid))
	return nil
}

func (l *loader) subscription(key, value []byte) error {
	s := l.owner(subscriptionPrefix, key)
	if s == nil {
		return nil
	}
	sub, err := decodeSubscriptionRow(key, value)
	if err != nil {
		return err
	}
	sub.session = s
	s.subscribe(sub)
	l.b.memory.Charge(memory.Subscriptions, sub.memory())
	group, rest := splitShare(sub.filter)
	l.b.insert(sub, group, rest)
	return nil
}

func (l *loader) group(key, value []byte) error {
	gid, err := decodeGroupRow(value)
	if err != nil {
		return err
	}
	l.b.lastSID.Store(max(l.b.lastSID.Load(), gid))
	g := l.b.groups[string(key)]
	if g == nil { // its last member has gone
		l.orphan(groupPrefix, key)
		return nil
	}
	g.gid = gid
	l.groups[gid] = g
	return nil
}

func (l *loader) payload(key, value []byte) error {
	if len(key) != 8 {
		return errRow
	}
	n := keyNumber(key)
	if len(value) == 0 || value[0] != rowVersion {
		return errRow
	}
	m, err := storedMessage(value[1:], l.wall)
	if err != nil {
		return err
	}
	l.payloads[n] = m
	l.b.payloads.last = max(l.b.payloads.last, n)
	return nil
}

func (l *loader) queued(key, value []byte) error {
	if len(key) != 16 {
		return errRow
	}
	sid, seq := keyNumber(key), keyNumber(key[8:])
	if g := l.groups[sid]; g != nil {
		return l.queuedForGroup(g, seq, value)
	}
	s := l.owner(queuePrefix, key)
	r, err := decodeQueueRow(value)
	if s == nil || err != nil {
		return errors.Join(err, l.stray(key, &r))
	}
	it := r.slot
	it.seq, it.saved, it.number = seq, true, r.number
	var m stored
	if it.state != slotReleased {
		if m, err = l.message(&r); err != nil {
			return err
		}
		it.size = uint32(m.size)
	}
	if r.shared != "" {
		it.sub = s.subs[r.shared]
	}
	maySent := seq < s.sentTo && (l.claim(s, &it) || it.id != 0 || it.state == slotReleased)
	if it.shared() && !maySent { // it may go to any member
		return l.stray(key, &r)
	}
	if r.number != 0 {
		l.b.payloads.refer(r.number, m.size)
	}
	q := &s.routed
	q.tail = seq + 1
	s.count(q, &it)
	s.orders++
	it.order = s.orders
	if it.state != slotReleased && it.id == 0 && !it.shared() {
		q.middle.add(seq, int64(it.size))
		q.middle.order = it.order
		q.middle.expiresAt(m.expiresAt)
		return nil
	}
	// A delivery under way that is to be found by its identifier, or by its group.
	it.dup = true
	if it.shared() {
		if it.msg, err = r.message(l.b.journal, l.wall); err != nil {
			return err
		}
		s.hold(q, &it)
	}
	if it.state == slotPending {
		it.state = slotSent
	}
	if !q.carry(it) {
		return errors.New("its packet identifier is another delivery's")
	}
	return nil
}

// claim says whether a message may have been sent with the packet identifier in its
// row, or the one that follows from its sequence number: none before it that is
// still there has that one.
// A message that found it in use was not sent before another one was in its row.
func (l *loader) claim(s *Session, it *slot) bool {
	if l.claimsOf != s {
		l.claimsOf = s
		clear(l.claims[:])
	}
	id := it.id
	if id == 0 {
		id = s.routed.packetID(it.seq)
	}
	if l.claims[id] {
		return false
	}
	l.claims[id] = true
	return true
}

// message gives what a row's message is.
func (l *loader) message(r *queueRow) (stored, error) {
	if r.number == 0 {
		return storedMessage(r.rest, l.wall)
	}
	m, there := l.payloads[r.number]
	if !there {
		return m, fmt.Errorf("its message %d is missing", r.number)
	}
	return m, nil
}

// opened makes a session's queue ready, now that all of it has been read.
func (l *loader) opened(s *Session) {
	q := &s.routed
	if s.sentTo == unknownSent {
		s.sentTo = q.tail
	}
	// Numbers of messages that have been sent and acknowledged aren't given again.
	q.tail = max(q.tail, s.sentTo)
	m := q.middle
	first := q.tail
	if m.count > 0 {
		first = m.from
	}
	q.front.reset(first)
	q.next = first
	q.back.reset(q.tail)
	if q.middle.to = q.tail; m.count == 0 {
		q.middle.from = q.tail
	}
}

// stray notes a message whose session has ended and whose group has not.
func (l *loader) stray(key []byte, r *queueRow) error {
	if r.shared == "" {
		return nil
	}
	name, rest := splitShare(r.shared)
	g := l.b.groups[name+"/"+rest]
	if g == nil {
		return nil
	}
	m, err := r.message(l.b.journal, l.wall)
	if err == nil {
		l.strays = append(l.strays, stray{g, m, append([]byte{queuePrefix, '|'}, key...)})
	}
	return err
}

func (l *loader) queuedForGroup(g *shareGroup, seq uint64, value []byte) error {
	r, err := decodeQueueRow(value)
	if err != nil {
		return err
	}
	m, err := l.message(&r)
	if err != nil {
		return err
	}
	if g.messages == 0 {
		g.front = seq
	}
	g.back = seq + 1
	g.count(&waiting{size: uint32(m.size)})
	g.middle.add(seq, int64(m.size))
	return nil
}

func (l *loader) received(key, value []byte) error {
	s := l.owner(receivedPrefix, key)
	if s == nil {
		return nil
	}
	if len(key) != 10 {
		return errRow
	}
	s.receive(nil, binary.BigEndian.Uint16(key[8:]))
	return nil
}

// owed goes on with the retained messages that a subscription had not been sent.
func (l *loader) owed(key, value []byte) error {
	s := l.owner(owedPrefix, key)
	if s == nil {
		return nil
	}
	r, number, err := decodeOwedRow(key, value)
	if err != nil {
		return err
	}
	l.b.lastSID.Store(max(l.b.lastSID.Load(), number))
	l.stamped(r.since)
	sub := s.subs[r.filter]
	if sub == nil { // a crash came between the end of the subscription and that of the row
		l.orphan(owedPrefix, key)
		return nil
	}
	r.sub = sub
	sub.replay = r // a row before it was of an earlier SUBSCRIBE: it is stale
	s.replays = append(s.replays, r)
	return nil
}

// stamped lets the stamps of what will be retained follow on those on disk.
func (l *loader) stamped(stamp uint64) {
	l.b.retained.stamps.Store(max(l.b.retained.stamps.Load(), stamp))
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

func (l *loader) retained(key, value []byte) error {
	m, err := decodeRetainedRow(value, l.wall)
	if err != nil {
		return err
	}
	kept := newKeptMessage(len(m.buf))
	kept.buf = append(kept.buf, m.buf...)
	kept.topicEnd, kept.propsEnd, kept.expiresAt = m.topicEnd, m.propsEnd, m.expiresAt
	kept.qos, kept.retain, kept.stamp, kept.publisher = m.qos, true, m.stamp, l.shared(m.publisher)
	m.release()
	l.stamped(kept.stamp)
	l.b.retained.names.Put(string(key), kept)
	l.b.retained.note(kept, 1)
	return nil
}

func (l *loader) will(key, value []byte) error {
	w, err := decodeWillRow(key, value)
	if err != nil {
		return err
	}
	sid := keyNumber(key)
	s := l.sessions[sid]
	w.number = sid
	w.charged = willMemory(w.message.topic(), w.message.props(), w.message.payload())
	l.b.memory.Charge(memory.Sessions, w.charged)
	l.b.lastSID.Store(max(l.b.lastSID.Load(), sid))
	if s == nil { // the session has ended, by the crash at the latest
		l.b.timers.add(0, func() {
			l.b.work(func(t *Turn) { l.b.publishWill(t, w) })
		})
		return nil
	}
	w.message.publisher = s.id
	if s.will = w; s.will.due == 0 {
		s.will.due = s.away + int64(s.will.delay)*1000
	}
	l.wills = append(l.wills, s)
	return nil
}

// finish starts the clocks of what was loaded, and deletes what belongs to nobody.
func (l *loader) finish() {
	b := l.b
	for _, s := range l.sessions {
		s.mu.Lock()
		l.opened(s)
		b.scheduleExpiry(s)
		s.mu.Unlock()
	}
	for _, s := range l.wills {
		s.mu.Lock()
		b.scheduleWill(s)
		s.mu.Unlock()
	}
	for n := range l.payloads {
		if _, used := b.payloads.refs[n]; !used {
			l.orphans = append(l.orphans, numberedKey(payloadPrefix, n))
		}
	}
	b.work(l.handBack)
}

// handBack gives messages of shared subscriptions back to their groups.
func (l *loader) handBack(t *Turn) {
	for _, s := range slices.Backward(l.strays) { // each goes to the front
		t.deletes = append(t.deletes, s.key)
		s.group.requeue(t, s.message)
	}
	l.b.commit(t, nil)
	l.deleteOrphans()
}

func (l *loader) deleteOrphans() {
	for len(l.orphans) > 0 { // in batches that don't keep others waiting
		n := min(len(l.orphans), 10_000)
		a := l.b.journal.Begin()
		for _, key := range l.orphans[:n] {
			a.Delete(key)
		}
		a.End(nil)
		l.orphans = l.orphans[n:]
	}
}
