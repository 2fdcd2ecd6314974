package broker

import (
	"errors"
	"fmt"
	"slices"

	"holdfast/internal/journal"
	"holdfast/internal/mqtt"
)

// What of a session's queue on disk is in memory.
//
// While the client is connected, that is what is under way, what is sent next, and
// what has come last. While it is away, hardly anything: it has to be read for the
// client's first message anyway. When the memory for all clients gets tight, only
// the next message is left.
const (
	windowMessages, windowBytes         = 1000, 1 << 20
	awayWindowMessages, awayWindowBytes = 32, 64 << 10

	// A read from disk brings so much.
	pageMessages, pageBytes = windowMessages / 4, windowBytes / 4
)

// window gives how much may be in memory; s.mu is held.
func (s *Session) window() (messages int, bytes int64) {
	switch {
	case s.b.memory.Tight():
		return 1, 0
	case s.conn == nil:
		return awayWindowMessages, awayWindowBytes
	}
	return windowMessages, windowBytes
}

// windowHasRoom says whether a message that comes may stay in the front; s.mu is held.
func (s *Session) windowHasRoom() bool {
	messages, bytes := s.window()
	return s.routed.waiting() < messages && s.routed.inMemory < bytes
}

// evict lets go of messages that needn't be in memory and are on disk: first from
// the back, then from the end of the front, then those under way. s.mu is held.
func (s *Session) evict() {
	q := &s.routed
	if s.sid == 0 || s.loading {
		return
	}
	messages, bytes := s.window()
	least := 0
	if s.conn != nil {
		least = 1
	}
	for q.waiting() > least && (q.inMemory > bytes || q.waiting() > messages) {
		it := q.evictable()
		if it == nil || !it.saved || it.shared() || it.state != slotPending || it.id != 0 {
			break
		}
		if !s.onDiskBy(it.batch) {
			s.awaits(it.batch) // Durable calls again
			break
		}
		q.middle.expiresAt(it.msg.expiresAt)
		s.letGo(q, it)
		q.evict(it)
	}
	if q.unevictable = min(q.unevictable, q.inMemory); q.inMemory > bytes && q.inMemory >= q.unevictable+pageBytes {
		q.eachUnderWay(func(it *slot) {
			if it.saved && !it.shared() && s.onDiskBy(it.batch) {
				s.letGo(q, it)
			}
		})
		q.unevictable = q.inMemory
	}
}

// page is a part of a queue that is to be read from disk.
type page struct {
	sid      uint64
	strays   []uint64 // sequence numbers of deliveries to be sent again; none: what waits
	from, to uint64   // of what waits
	messages int      // at the most
	bytes    int64    // after which the page ends
}

// loaded is a message read from disk.
type loaded struct {
	seq uint64
	row queueRow
	msg *Message
	err error // why there is no message
}

// loadMessages reads messages of the session's queue back from disk, the next to
// be sent first. Called with no lock held.
func (b *Broker) loadMessages(t *Turn, s *Session) {
	if t.hurried {
		if s.lacks() {
			b.background(func(t *Turn) { b.goOn(t, s) })
		}
		return
	}
	for {
		p, any := s.toLoad()
		if !any {
			return
		}
		found, whole, err := b.readPage(&p)
		if errors.Is(err, journal.ErrClosed) {
			return // the server stops; no client misses anything
		}
		if err != nil {
			s.notLoaded(p.sid, err)
			return
		}
		if !s.fill(t, &p, found, whole) {
			return
		}
	}
}

func (s *Session) lacks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lacksNext() || s.lacksOldest()
}

// lacksNext says whether the next message to be sent is on disk only, could be sent
// now, and nothing reads it; s.mu is held.
func (s *Session) lacksNext() bool {
	return s.conn != nil && !s.loading && s.inflight < s.receiveMax && s.routed.lacksMessage()
}

// toLoad says which part of the queue is to be read next, if any.
func (s *Session) toLoad() (p page, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.lacksNext() && !s.lacksOldest() {
		return p, false
	}
	s.loading = true
	q := &s.routed
	p = page{sid: s.sid, from: q.middle.from, to: q.middle.to, messages: pageMessages, bytes: pageBytes}
	if s.b.memory.Tight() {
		p.messages, p.bytes = awayWindowMessages, awayWindowBytes
	}
	if q.candidate() == nil {
		return p, true
	}
	bytes := int64(0)
	for _, it := range q.resend {
		if it.msg != nil || it.state != slotSent {
			continue
		}
		p.strays = append(p.strays, it.seq)
		if bytes += int64(it.size); bytes >= p.bytes || len(p.strays) == p.messages {
			break
		}
	}
	return p, true
}

// readPage reads a page; whole: there is nothing behind it.
func (b *Broker) readPage(p *page) (found []loaded, whole bool, err error) {
	read := func(seq uint64, value []byte) int {
		l := loaded{seq: seq}
		if l.row, l.err = decodeQueueRow(value); l.err == nil {
			l.msg, l.err = l.row.message(b.journal, b.wall())
		}
		found = append(found, l)
		if l.err != nil {
			return 0
		}
		l.row.rest = nil
		return len(l.msg.buf)
	}
	if len(p.strays) > 0 {
		for _, seq := range p.strays {
			value, there, err := b.journal.Get(queueKey(p.sid, seq))
			if err != nil {
				return found, false, err
			}
			if there {
				read(seq, value)
			}
		}
		return found, true, nil
	}
	whole = true
	bytes := int64(0)
	err = b.journal.Iterate(queueKey(p.sid, p.from), queueKey(p.sid, p.to), func(key, value []byte) bool {
		bytes += int64(read(keyNumber(key[10:]), value))
		whole = len(found) < p.messages && bytes < p.bytes
		return whole
	})
	return found, whole, err
}

// notLoaded closes the connection of a session whose queue could not be read for
// the moment: its messages stay.
func (s *Session) notLoaded(sid uint64, err error) {
	s.mu.Lock()
	s.loading = false
	c, same := s.conn, s.sid == sid
	s.mu.Unlock()
	if !same {
		return
	}
	s.b.log.Error("cannot read the queue of a session", "client", s.id, "error", err)
	if c != nil {
		c.Disconnect(mqtt.UnspecifiedError, "the session's queue could not be read")
	}
}

// fill puts loaded messages where they belong and goes on sending. A message that
// is missing, or that makes no sense, ends the session: a hole must not be silent.
// It says whether there may be more to load.
func (s *Session) fill(t *Turn, p *page, found []loaded, whole bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer releaseLoaded(found)
	s.loading = false
	if s.ended || s.sid != p.sid {
		return false
	}
	if hole := s.fillIn(p, found, whole); hole != "" {
		s.b.log.Error("ending a session because its queue on disk has a hole", "client", s.id, "problem", hole)
		t.ending = append(t.ending, s)
		return false
	}
	s.shed(t)
	s.pump(t)
	s.evict()
	if s.conn != nil {
		t.touch(s.conn)
	}
	return true
}

// fillIn takes messages over from found. hole says what is missing.
func (s *Session) fillIn(p *page, found []loaded, whole bool) (hole string) {
	q := &s.routed
	for i := range found {
		l := &found[i]
		if l.err != nil {
			return fmt.Sprintf("message %d: %v", l.seq, l.err)
		}
		if len(p.strays) > 0 {
			for _, it := range q.resend {
				if it.seq == l.seq && it.state == slotSent && it.msg == nil {
					it.msg, l.msg = l.msg, nil
					s.hold(q, it)
				}
			}
			continue
		}
		it := l.row.slot
		it.seq, it.msg, it.saved, it.number, it.held = l.seq, l.msg, true, l.row.number, true
		it.size, it.dup = uint32(l.msg.size()), l.seq < s.sentTo
		if !q.load(it) {
			return ""
		}
		s.hold(q, &it)
		l.msg = nil
	}
	if len(p.strays) > 0 {
		for _, it := range q.resend {
			if it.msg == nil && it.state == slotSent && slices.Contains(p.strays, it.seq) {
				return fmt.Sprintf("message %d is missing", it.seq)
			}
		}
		return ""
	}
	if whole {
		if q.middle.to == p.to && q.middle.count != 0 {
			return fmt.Sprintf("%d messages are missing", q.middle.count)
		}
		q.middle.from = p.to
	}
	return ""
}

func releaseLoaded(found []loaded) {
	for _, l := range found {
		if l.msg != nil {
			l.msg.release()
		}
	}
}
