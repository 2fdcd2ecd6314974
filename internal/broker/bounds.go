package broker

import (
	"errors"
	"math"
	"slices"

	"holdfast/internal/journal"
	"holdfast/internal/mqtt"
)

// What happens when queues reach their bounds.
//
// A session's queue on disk is bounded in bytes of the disk. At the bound the
// session's policy says what happens (QueueFull): the server's, or what its client
// asked for in CONNECT. Messages that have expired go before that.
//
// All queues together are bounded, too. From nine tenths of that on, nothing that
// was acknowledged is lost for it, but publishes are refused that would go to a
// session which holds more than its fair share. The fair share is the most that
// every session could hold within eight tenths of the bound, if those that hold
// less leave the rest to the others. So a client with many sessions, or one large
// one, that fills the disk can't cost a session with a small queue anything: such a
// session is below its share, and messages for it are still taken. Which publisher
// has filled the queues does not matter: it may be any that publishes to a topic of
// an abandoned session, and none of those is at fault.
//
// What is in memory only (the queues of sessions that end with their connection,
// responses, notifications) is bounded in bytes of memory.

const (
	rowOverhead  = 64  // bytes that a queued message takes on disk besides its own
	slotOverhead = 320 // bytes that a queued message takes in memory besides its own, at the most

	nearFullTenths  = 8
	pressedTenths   = 9
	fairTenths      = 8
	fairInterval    = 250      // ms for which fair shares hold
	alwaysAllowed   = 64 << 10 // bytes that any session may hold as long as the disk has room
	expiredAtOnce   = 64       // slots looked at for expired messages when a queue is full
	purgeAtOnce     = 1000     // rows looked at by a purge between two others' turns
	purgeRoomShare  = 16       // of the bound: what may come while a purge makes room
	warnedAgainHalf = 2
)

func loadOf(messages int, bytes, overhead int64) int64 { return bytes + int64(messages)*overhead }

// policy says what happens when the queue on disk is full; s.mu is held.
func (s *Session) policy() QueueFull {
	if s.asked != 0 {
		return queueFulls[s.asked]
	}
	return s.b.limits.QueueFull
}

// stored says whether the messages of a queue are on disk; s.mu is held.
func (s *Session) stored(q *outqueue) bool { return q == &s.routed && s.sid != 0 }

// fullness gives what a queue holds, and its bound, in bytes; s.mu is held.
func (s *Session) fullness(q *outqueue) (load, bound int64) {
	l := &s.b.limits
	if s.stored(q) {
		return loadOf(q.messages, q.bytes, rowOverhead), l.MaxQueuedBytes
	}
	return loadOf(q.messages, q.bytes, slotOverhead), min(l.MaxQueuedMemory, l.MaxQueuedBytes)
}

// full says whether the queue is at its bound, after expired messages have gone.
// s.mu is held.
func (s *Session) full(t *Turn, q *outqueue) bool {
	load, bound := s.fullness(q)
	if load < bound && q.messages < s.b.limits.MaxQueued {
		return false
	}
	if s.dropExpired(q) {
		load, bound = s.fullness(q)
	}
	if s.mayPurge() {
		t.nearFull = append(t.nearFull, s)
		return load >= bound+bound/purgeRoomShare || q.messages-q.messages/(purgeRoomShare+1) >= s.b.limits.MaxQueued
	}
	return load >= bound || q.messages >= s.b.limits.MaxQueued
}

// dropExpired drops the first messages in memory that have expired; s.mu is held.
func (s *Session) dropExpired(q *outqueue) (any bool) {
	now := s.b.Now()
	q.join()
	for seq := q.next; seq < min(q.front.end, q.next+expiredAtOnce); seq++ {
		it := q.front.at(seq)
		if it.state == slotPending && !it.dup && it.batch != unsaved && it.msg != nil && expired(it.msg.expiresAt, now) {
			if it.saved && s.sid != 0 {
				s.deleteRow(it.seq)
			}
			s.remove(q, it)
			s.b.stats.Expired.Add(1)
			any = true
		}
	}
	q.trim()
	return any
}

func expired(at, now int64) bool { return at != 0 && at <= now }

// mayPurge says whether there are expired messages on disk only, or a goroutine
// deletes them; s.mu is held.
func (s *Session) mayPurge() bool {
	return s.purging || s.routed.middle.count > 0 && expired(s.routed.middle.expires, s.b.Now())
}

// makeRoom deals with a queue at its bound: it says whether a message more may
// come. s.mu is held.
func (s *Session) makeRoom(t *Turn, q *outqueue) bool {
	if q == &s.direct {
		// A response or notification is lost, so the client has to know; what is on
		// disk for it stays.
		s.b.stats.Dropped.Add(1)
		if c := s.conn; c != nil {
			c.Disconnect(mqtt.QuotaExceeded, "too many responses and notifications wait for their acknowledgement")
		}
		return false
	}
	load, bound := s.fullness(q)
	if s.policy() == DropOldest && load < 2*bound && q.messages/2 < s.b.limits.MaxQueued {
		return true // shed follows
	}
	if !s.ended {
		t.ending = append(t.ending, s)
	}
	return false
}

// shed drops the oldest messages that have not been sent, if that is what is to
// happen with a queue beyond its bound. Those on disk only are read for that.
// s.mu is held.
func (s *Session) shed(t *Turn) {
	if s.policy() != DropOldest {
		return
	}
	for s.overfull() {
		it := s.routed.oldestWaiting()
		if it == nil {
			if s.lacksOldest() {
				t.feed = append(t.feed, s)
			}
			return
		}
		s.drop(&s.routed, it)
		s.b.stats.Dropped.Add(1)
	}
}

// overfull says whether the queue is beyond its bound; s.mu is held.
func (s *Session) overfull() bool {
	load, bound := s.fullness(&s.routed)
	return load > bound || s.routed.messages > s.b.limits.MaxQueued
}

// lacksOldest says whether shed needs messages that are on disk only, and no
// goroutine reads them; s.mu is held.
func (s *Session) lacksOldest() bool {
	return s.policy() == DropOldest && s.overfull() && !s.loading && s.routed.middle.count > 0 && s.routed.oldestWaiting() == nil
}

// warn notes that the queue on disk has come near its bound; s.mu is held.
func (s *Session) warn(t *Turn, q *outqueue) {
	if !s.stored(q) {
		return
	}
	load, bound := s.fullness(q)
	near := load > bound/10*nearFullTenths || q.messages > s.b.limits.MaxQueued/10*nearFullTenths
	switch {
	case near && !s.warned:
		s.warned = true
		t.nearFull = append(t.nearFull, s)
	case !near && s.warned && load < bound/warnedAgainHalf && q.messages < s.b.limits.MaxQueued/warnedAgainHalf:
		s.warned = false
	}
}

// isNearFull says that a queue is near its bound, and has what has expired of it
// deleted. No lock is held.
func (b *Broker) isNearFull(s *Session) {
	s.mu.Lock()
	messages, bytes, ended := s.routed.messages, s.routed.bytes, s.ended
	_, bound := s.fullness(&s.routed)
	say := s.warned && !s.said
	s.said = s.warned
	purge := !s.purging && s.mayPurge()
	s.purging = s.purging || purge
	s.mu.Unlock()
	if say && !ended {
		b.stats.NearFull.Add(1)
		b.log.Warn("the queue of a session is near its bound", "client", s.id, "messages", messages, "bytes", bytes, "bound", bound)
	}
	if purge && !b.background(func(t *Turn) { b.purge(s) }) {
		s.mu.Lock()
		s.purging = false
		s.mu.Unlock()
	}
}

// purge deletes expired messages that are on disk only, a page at a time.
func (b *Broker) purge(s *Session) {
	s.mu.Lock()
	sid, m := s.sid, s.routed.middle
	s.mu.Unlock()
	earliest := int64(0)
	var err error
	for from := m.from; from < m.to && err == nil; {
		type row struct {
			seq, number uint64
			size        int
		}
		var gone []row
		rows, now, wall := 0, b.Now(), b.wall()
		next := m.to
		err = b.journal.Iterate(queueKey(sid, from), queueKey(sid, m.to), func(key, value []byte) bool {
			if rows == purgeAtOnce {
				next = keyNumber(key[10:])
				return false
			}
			rows++
			r, bad := decodeQueueRow(value)
			if bad != nil {
				return true // the goroutine that reads it to send it will say so
			}
			row := row{seq: keyNumber(key[10:]), number: r.number}
			rest := r.rest
			if r.number != 0 {
				var found bool
				if rest, found, bad = b.journal.Get(numberedKey(payloadPrefix, r.number)); bad != nil || !found || len(rest) == 0 {
					return true
				}
				rest = rest[1:]
			}
			stored, bad := storedMessage(rest, wall)
			switch {
			case bad != nil:
			case expired(stored.expiresAt, now):
				row.size = stored.size
				gone = append(gone, row)
			case stored.expiresAt != 0 && (earliest == 0 || stored.expiresAt < earliest):
				earliest = stored.expiresAt
			}
			return true
		})
		from = next
		s.mu.Lock()
		q := &s.routed
		if s.ended || s.sid != sid {
			s.purging = false
			s.mu.Unlock()
			return
		}
		for _, r := range gone {
			if s.loading || r.seq < q.middle.from || r.seq >= q.middle.to || r.seq < s.sentTo {
				continue // it will be dropped before it is sent, or may have been sent before
			}
			s.deleteRow(r.seq)
			if r.number != 0 {
				b.payloads.release(b.journal, r.number)
			}
			q.middle.count--
			q.middle.bytes -= int64(r.size)
			s.level(q, -1, -int64(r.size))
			b.stats.Expired.Add(1)
		}
		s.mu.Unlock()
	}
	if err != nil && !errors.Is(err, journal.ErrClosed) {
		b.log.Error("cannot read the queue of a session to delete what has expired", "client", s.id, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.purging = false
	if q := &s.routed; q.middle.expires == m.expires {
		q.middle.expires = earliest
	}
}

// StoredBytes is how many bytes queued messages take on disk, or in memory only. A
// message that is in several queues counts once.
func (b *Broker) StoredBytes() int64 {
	return loadOf(int(b.stats.Queued.Load()), b.stats.QueuedBytes.Load()-b.payloads.spared.Load(), rowOverhead)
}

// weight makes one figure of messages and bytes, on the scale of MaxTotalQueuedBytes.
func (b *Broker) weight(messages int, load int64) int64 {
	l := &b.limits
	return max(load, int64(float64(messages)*float64(l.MaxTotalQueuedBytes)/float64(l.MaxTotalQueued)))
}

// refuses says whether a publish must be refused before any client gets it: a
// matching session wants that of a full queue, or all queues together are near
// their bound and it would go to one that holds more than its share.
func (b *Broker) refuses(t *Turn, o *outgoing) bool {
	level := b.fairLevel()
	if level == math.MaxInt64 && b.limits.QueueFull != Reject && b.rejecting.Load() == 0 {
		return false
	}
	t.matches = b.filters.Match(o.topic, t.matches[:0])
	for _, sub := range t.matches {
		if sub.session == nil {
			if sub.group.refuses(level) {
				return true
			}
			continue
		}
		if sub.session.refuses(t, sub, level) {
			return true
		}
	}
	return false
}

func (s *Session) refuses(t *Turn, sub *subscription, level int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.qos == 0 || s.ended || s.conn == nil && !s.durable() {
		return false
	}
	q := &s.routed
	load, _ := s.fullness(q)
	return s.b.weight(q.messages, load) > level || s.policy() == Reject && s.full(t, q)
}

func (g *shareGroup) refuses(level int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.weight(g.messages, g.load()) > level || g.b.limits.QueueFull == Reject && g.full()
}

// fairLevel gives the weight above which sessions get no more for now:
// math.MaxInt64, as long as all queues together are well below their bound.
func (b *Broker) fairLevel() int64 {
	l := &b.limits
	used := b.weight(int(b.stats.Queued.Load()), b.StoredBytes())
	if used < l.MaxTotalQueuedBytes/10*nearFullTenths {
		if b.nearTotal.Load() && used < l.MaxTotalQueuedBytes/warnedAgainHalf {
			b.nearTotal.Store(false)
		}
		return math.MaxInt64
	}
	if !b.nearTotal.Swap(true) {
		b.stats.NearFull.Add(1)
		b.log.Warn("the queues of all sessions together are near their bound", "messages", b.stats.Queued.Load(), "bytes", b.StoredBytes(), "bound", l.MaxTotalQueuedBytes)
	}
	switch {
	case used < l.MaxTotalQueuedBytes/10*pressedTenths:
		return math.MaxInt64
	case used >= l.MaxTotalQueuedBytes:
		return min(b.fairShare(), alwaysAllowed)
	}
	return b.fairShare()
}

// fairShare gives the weight that every session may have within fairTenths of the
// bound. It is counted anew once in a while.
func (b *Broker) fairShare() int64 {
	b.fairMu.Lock()
	defer b.fairMu.Unlock()
	if now := b.Now(); b.fairAt == 0 || now-b.fairAt >= fairInterval {
		b.fair, b.fairAt = levelOf(b.weights(), b.limits.MaxTotalQueuedBytes/10*fairTenths), now
	}
	return b.fair
}

// levelOf gives the level at which weights that are cut there make up room.
func levelOf(weights []int64, room int64) int64 {
	slices.Sort(weights)
	for i, w := range weights {
		others := int64(len(weights) - i)
		if w > room/others {
			return room / others
		}
		room -= w
	}
	return math.MaxInt64
}

// weights gives what each session and each backlog holds.
func (b *Broker) weights() (all []int64) {
	b.mu.Lock()
	sessions := make([]*Session, 0, len(b.sessions))
	for _, s := range b.sessions {
		sessions = append(sessions, s)
	}
	b.mu.Unlock()
	for _, s := range sessions {
		s.mu.Lock()
		load, _ := s.fullness(&s.routed)
		if s.routed.messages > 0 {
			all = append(all, b.weight(s.routed.messages, load))
		}
		s.mu.Unlock()
	}
	b.groupsMu.Lock()
	defer b.groupsMu.Unlock()
	for _, g := range b.groups {
		g.mu.Lock()
		if g.messages > 0 {
			all = append(all, b.weight(g.messages, g.load()))
		}
		g.mu.Unlock()
	}
	return all
}

// queueFullProperty is the user property by which a CONNECT chooses what happens
// when the session's queue is full.
const queueFullProperty = "holdfast-queue-full"

// askedQueueFull gives what a CONNECT chooses, as Session.asked has it. ok is false
// if there is no such choice.
func askedQueueFull(props []byte) (asked byte, ok bool) {
	value, found := mqtt.FindUserProp(props, queueFullProperty)
	if !found {
		return 0, true
	}
	i := slices.Index(queueFulls, QueueFull(value))
	return byte(max(i, 0)), i > 0
}

// judgeQueueFull says whether the client may choose what it does.
func (b *Broker) judgeQueueFull(props []byte) (code mqtt.ReasonCode, reason string) {
	asked, ok := askedQueueFull(props)
	switch {
	case !ok:
		return mqtt.ImplementationSpecificError, "the user property " + queueFullProperty + " must be end-session, reject or drop-oldest"
	case b.limits.KeepQueueFull && asked != 0 && queueFulls[asked] != b.limits.QueueFull:
		return mqtt.NotAuthorized, "this server does not let sessions choose what happens when their queue is full"
	}
	return mqtt.Success, ""
}

// ask notes what the client chose; s.mu is held.
func (s *Session) ask(asked byte) {
	if queueFulls[s.asked] == Reject {
		s.b.rejecting.Add(-1)
	}
	if s.asked = asked; queueFulls[asked] == Reject {
		s.b.rejecting.Add(1)
	}
}

// fitQueues sets the bounds of queues on disk that are not set by what the disk has
// room for: half of what is free, or taken by queues already, for all of them, and a
// quarter of that for one.
func (b *Broker) fitQueues() {
	l := &b.limits
	if l.MaxTotalQueuedBytes == 0 {
		l.MaxTotalQueuedBytes = unknownDisk
		if free, reserve, known := b.journal.Free(); known {
			l.MaxTotalQueuedBytes = max((free-reserve+b.StoredBytes())/2, leastQueued)
		}
		l.MaxTotalQueuedBytes = max(l.MaxTotalQueuedBytes, l.MaxQueuedBytes)
	}
	if l.MaxQueuedBytes == 0 {
		l.MaxQueuedBytes = l.MaxTotalQueuedBytes / 4
	}
}

const (
	unknownDisk = 4 << 30  // bytes for all queues where the file system doesn't say what is free
	leastQueued = 64 << 20 // bytes for all queues on a disk that is all but full
)

// QueueBounds gives the bytes that one session's queue on disk may have, and all
// together.
func (b *Broker) QueueBounds() (session, total int64) {
	return b.limits.MaxQueuedBytes, b.limits.MaxTotalQueuedBytes
}
