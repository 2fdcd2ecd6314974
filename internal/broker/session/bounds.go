package session

import (
	"errors"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// What happens when queues reach their bounds.
//
// A session's queue on disk is bounded in bytes of the disk. At the bound the
// session's setting says what happens (QueueFull): the server's, or what its client
// chose in CONNECT. Before that, messages that have expired are removed.
//
// All queues together are bounded, too. From nine tenths of that bound on, the broker refuses publishes
// to a session that holds more than its fair share, and drops nothing that was acknowledged. The fair
// share is the most that every session could hold within eight tenths of the bound, if those that hold
// less leave the rest to the others. So a client with many sessions, or one large one, that fills the
// disk can't cost a session with a small queue anything: messages for it are still taken. Which publisher
// has filled the queues does not matter: any that publishes to a topic of an abandoned session may have.
//
// What is in memory only (the queues of sessions that end with their connection,
// responses, notifications) is bounded in bytes of memory.

const (
	NearFullTenths   = 8
	expiredAtOnce    = 64   // slots looked at for expired messages when a queue is full
	purgeAtOnce      = 1000 // rows that purge reads before it locks the session again
	purgeRoomShare   = 16   // while a purge makes room, a queue may exceed its bound by this part of it: a 16th
	WarnAgainDivisor = 2    // once a queue holds less than its bound divided by this, the log may warn again
)

// whenFull says what happens when the queue on disk is full; s.Mu is held.
func (s *Session) whenFull() limits.QueueFull {
	if s.queueFull != 0 {
		return limits.QueueFulls[s.queueFull]
	}
	return s.Env.Limits().QueueFull
}

// stored says whether the messages of a queue are on disk; s.Mu is held.
func (s *Session) stored(q *queue.Queue) bool { return q == &s.Routed && s.SID != 0 }

// Fullness gives what a queue holds, and its bound, in bytes; s.Mu is held.
func (s *Session) Fullness(q *queue.Queue) (load, bound int64) {
	return s.fullness(q, s.Env.Limits())
}

func (s *Session) fullness(q *queue.Queue, l *limits.Limits) (load, bound int64) {
	if s.stored(q) {
		return queue.Footprint(q.Messages, q.Bytes, queue.RowOverhead), l.MaxQueuedBytes
	}
	return queue.Footprint(q.Messages, q.Bytes, queue.SlotOverhead), min(l.MaxQueuedMemory, l.MaxQueuedBytes)
}

// full says whether the queue is at its bound, after expired messages have gone.
// s.Mu is held.
func (s *Session) full(t *Turn, q *queue.Queue) bool { return s.fullWith(t, q, 0, 0) }

// fullWith is full for a queue that holds so many messages, of so many bytes, more; s.Mu is
// held.
func (s *Session) fullWith(t *Turn, q *queue.Queue, messages int, more int64) bool {
	most := s.Env.Limits().MaxQueued
	load, bound := s.Fullness(q)
	if load+more < bound && q.Messages+messages < most {
		return false
	}
	if s.dropExpired(q) {
		load, bound = s.Fullness(q)
	}
	load, messages = load+more, messages+q.Messages
	if s.mayPurge() {
		t.nearFull = append(t.nearFull, s)
		return load >= bound+bound/purgeRoomShare || messages-messages/(purgeRoomShare+1) >= most
	}
	return load >= bound || messages >= most
}

// fullToOthers is full of the queue Routed for a message that no room is promised to; s.Mu
// is held.
func (s *Session) fullToOthers(t *Turn) bool {
	return s.fullWith(t, &s.Routed, s.promised.Messages(), s.promised.DiskBytes())
}

// dropExpired drops the first messages in memory that have expired; s.Mu is held.
func (s *Session) dropExpired(q *queue.Queue) (any bool) {
	now := s.Env.Now()
	q.Join()
	for seq := q.Next; seq < min(q.Front.End, q.Next+expiredAtOnce); seq++ {
		it := q.Front.At(seq)
		if it.State == queue.Pending && !it.Dup && it.Batch != queue.Unsaved && it.Message != nil && expired(it.Message.ExpiresAt, now) {
			if it.Saved && s.SID != 0 {
				s.deleteRow(it.Seq)
			}
			s.Remove(q, it)
			s.Env.Counters.Expired.Add(1)
			any = true
		}
	}
	q.Trim()
	return any
}

func expired(at, now int64) bool { return at != 0 && at <= now }

// mayPurge says whether there are expired messages on disk only, or a goroutine
// deletes them; s.Mu is held.
func (s *Session) mayPurge() bool {
	return s.purging || s.Routed.Middle.Count > 0 && expired(s.Routed.Middle.Expires, s.Env.Now())
}

// admitWhenFull does what is to happen when a queue is at its bound, and says whether one more
// message may come nevertheless. s.Mu is held.
func (s *Session) admitWhenFull(t *Turn, q *queue.Queue) bool {
	if q == &s.Direct {
		// A response or notification is lost, so the client has to know; what is on
		// disk for it stays.
		s.Env.Counters.Dropped.Add(1)
		if c := s.Peer; c != nil {
			c.Disconnect(mqtt.QuotaExceeded, "too many responses and notifications wait for their acknowledgement (--max-queued-memory, --max-queued-messages)")
		}
		return false
	}
	if w := s.whenFull(); w != limits.EndSession && s.belowTwice(q) {
		return true // shed follows; or publishes are rejected, and this one was not: it came to a new subscription
	}
	if !s.Ended {
		t.EndSession(s)
	}
	return false
}

// shed drops the oldest messages that have not been sent, while the queue is beyond its
// bound, if whenFull says DropOldest. ResumeFeed first reads those that are on disk only.
// s.Mu is held.
func (s *Session) shed(t *Turn) {
	if s.whenFull() != limits.DropOldest {
		return
	}
	for s.overfull() {
		it := s.Routed.OldestWaiting()
		if it == nil {
			if s.lacksOldest() {
				t.Feed = append(t.Feed, s)
			}
			return
		}
		s.drop(&s.Routed, it)
		s.Env.Counters.Dropped.Add(1)
	}
}

// Overfull says whether the queue is beyond its bound, and what the next message for it then
// does; s.Mu is held.
func (s *Session) Overfull() (then limits.QueueFull, overfull bool) {
	return s.whenFull(), s.overfull()
}

func (s *Session) overfull() bool {
	load, bound := s.Fullness(&s.Routed)
	return load > bound || s.Routed.Messages > s.Env.Limits().MaxQueued
}

// lacksOldest says whether shed needs messages that are on disk only, and no
// goroutine reads them; s.Mu is held.
func (s *Session) lacksOldest() bool {
	return s.whenFull() == limits.DropOldest && s.overfull() && !s.loading && s.Routed.Middle.Count > 0 && s.Routed.OldestWaiting() == nil
}

// warn notes that the queue on disk has come near its bound; s.Mu is held.
func (s *Session) warn(t *Turn, q *queue.Queue) {
	if !s.stored(q) {
		return
	}
	load, bound := s.Fullness(q)
	near := load > bound/10*NearFullTenths || q.Messages > s.Env.Limits().MaxQueued/10*NearFullTenths
	switch {
	case near && !s.warned:
		s.warned = true
		t.nearFull = append(t.nearFull, s)
	case !near && s.warned && load < bound/WarnAgainDivisor && q.Messages < s.Env.Limits().MaxQueued/WarnAgainDivisor:
		s.warned = false
	}
}

// noteNearFull logs once that a queue has come near its bound, and starts a goroutine that
// deletes expired messages from the disk. No lock is held.
func (e *Env) noteNearFull(s *Session) {
	s.Mu.Lock()
	messages, bytes, ended := s.Routed.Messages, s.Routed.Bytes, s.Ended
	_, bound := s.Fullness(&s.Routed)
	report := s.warned && !s.logged
	s.logged = s.warned
	purge := !s.purging && s.mayPurge()
	s.purging = s.purging || purge
	s.Mu.Unlock()
	if report && !ended {
		e.Counters.NearFull.Add(1)
		e.Log.Warn("the queue of a session is near its bound", "client", s.ID, "messages", messages, "bytes", bytes, "bound", bound)
	}
	if purge && !e.Background(func(t *Turn) { e.purge(s) }) {
		s.Mu.Lock()
		s.purging = false
		s.Mu.Unlock()
	}
}

// purge deletes expired messages that are on disk only, a page at a time.
func (e *Env) purge(s *Session) {
	s.Mu.Lock()
	sid, m := s.SID, s.Routed.Middle
	s.Mu.Unlock()
	earliest := int64(0)
	var err error
	for from := m.From; from < m.To && err == nil; {
		var gone []queue.ExpiredRow
		var first int64
		var next uint64
		gone, first, next, err = e.Pages.Expired(sid, from, m.To, purgeAtOnce, e.Now())
		if first != 0 && (earliest == 0 || first < earliest) {
			earliest = first
		}
		from = next
		s.Mu.Lock()
		q := &s.Routed
		if s.Ended || s.SID != sid {
			s.purging = false
			s.Mu.Unlock()
			return
		}
		for _, r := range gone {
			if s.loading || r.Seq < q.Middle.From || r.Seq >= q.Middle.To || r.Seq < q.SentTo {
				continue // it will be dropped before it is sent, or may have been sent before
			}
			s.deleteRow(r.Seq)
			if r.Number != 0 {
				e.Payloads.Release(e.Journal, r.Number)
			}
			q.Middle.Count--
			q.Middle.Bytes -= int64(r.Size)
			s.Charges(q).Level(q, -1, -int64(r.Size))
			e.Counters.Expired.Add(1)
		}
		s.Mu.Unlock()
	}
	if err != nil && !errors.Is(err, journal.ErrClosed) {
		e.Log.Error("cannot read the queue of a session to delete what has expired", "client", s.ID, "error", err)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.purging = false
	if q := &s.Routed; q.Middle.Expires == m.Expires {
		q.Middle.Expires = earliest
	}
}

// Weight is what a queue counts for the fair shares: its bytes or its messages, whichever is
// more of the bound of all queues, on the scale of MaxTotalQueuedBytes.
func (e *Env) Weight(messages int, load int64) int64 {
	l := e.Limits()
	return max(load, int64(float64(messages)*float64(l.MaxTotalQueuedBytes)/float64(l.MaxTotalQueued)))
}

// belowTwice says whether the queue is below twice its highest bound; s.Mu is held.
func (s *Session) belowTwice(q *queue.Queue) bool {
	l := s.Env.Highest()
	load, bound := s.fullness(q, l)
	return load < 2*bound && q.Messages/2 < l.MaxQueued
}

// Refuses says whether a publish to the session is to be refused: the session holds more than
// level, or rejects what its queue has no room for. If it has room, that is promised to the
// message, of so many bytes, until it has been routed and the turn returns its Promises: of
// two publishes for the last place one is refused.
func (s *Session) Refuses(t *Turn, sub *Subscription, level int64, size int) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if sub.QoS == 0 || s.Ended || s.Peer == nil && !s.Persistent() {
		return false
	}
	q := &s.Routed
	load, _ := s.Fullness(q)
	switch {
	case s.Env.Weight(q.Messages, load) > level:
		return true
	case s.whenFull() != limits.Reject:
		return false
	case s.fullToOthers(t):
		return true
	}
	if s.promised == nil {
		s.promised = new(queue.Promised)
	}
	t.Promises.Add(s, s.promised, size)
	return false
}

// ReturnRoom takes back room that was promised to a message.
func (s *Session) ReturnRoom(size int) {
	s.Mu.Lock()
	s.promised.Return(size)
	s.Mu.Unlock()
}

// ChooseQueueFull sets what the client chose for a full queue: an index of
// limits.QueueFulls; 0: nothing. s.Mu is held.
func (s *Session) ChooseQueueFull(chosen byte) {
	before := s.HasChosenReject()
	s.queueFull = chosen
	now := s.HasChosenReject()
	if now == before {
		return
	}
	if now {
		s.Env.Rejecting.Add(1)
	} else {
		s.Env.Rejecting.Add(-1)
	}
	for _, sub := range s.Subs {
		if sub.Group != nil {
			sub.Group.NoteRejects(sub, now)
		}
	}
}

// HasChosenReject says whether the client has chosen limits.Reject. s.Mu is held.
func (s *Session) HasChosenReject() bool { return limits.QueueFulls[s.queueFull] == limits.Reject }
