package session

import (
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// window is how much of the queue may be in memory; s.Mu is held.
func (s *Session) window() (messages int, bytes int64) {
	switch {
	case s.Env.Memory.Tight():
		return 1, 0
	case s.Peer == nil:
		return queue.AwayWindowMessages, queue.AwayWindowBytes
	}
	return queue.WindowMessages, queue.WindowBytes
}

// windowHasRoom says whether a new message may go to the front; s.Mu is held.
func (s *Session) windowHasRoom() bool {
	messages, bytes := s.window()
	return s.Routed.Waiting() < messages && s.Routed.InMemory < bytes
}

// Evict releases messages that are on disk from memory until the queue is within its window:
// first from the back, then from the end of the front, then inflight ones. s.Mu is held.
func (s *Session) Evict() {
	q := &s.Routed
	if s.SID == 0 || s.loading {
		return
	}
	messages, bytes := s.window()
	least := 0
	if s.Peer != nil {
		least = 1
	}
	for q.Waiting() > least && (q.InMemory > bytes || q.Waiting() > messages) {
		it := q.Evictable()
		if it == nil || !it.Saved || it.Shared() || it.State != queue.Pending || it.ID != 0 {
			break
		}
		if !s.onDiskBy(it.Batch) {
			s.awaits(it.Batch) // Durable calls Evict again
			break
		}
		q.Middle.ExpiresAt(it.Message.ExpiresAt)
		s.Charges(q).LetGo(q, it)
		q.Evict(it)
	}
	if q.Unevictable = min(q.Unevictable, q.InMemory); q.InMemory > bytes && q.InMemory >= q.Unevictable+queue.PageBytes {
		q.EachInflight(func(it *queue.Slot) {
			if it.Saved && !it.Shared() && s.onDiskBy(it.Batch) {
				s.Charges(q).LetGo(q, it)
			}
		})
		q.Unevictable = q.InMemory
	}
}

// LoadMessages reads messages of the session's queue back from disk, the next one to send
// first. Called with no lock held.
func (e *Env) LoadMessages(t *Turn, s *Session) {
	for {
		p, any := s.toLoad()
		if !any {
			return
		}
		found, whole, err := e.Pages.Read(&p)
		if errors.Is(err, journal.ErrClosed) {
			return // the server stops; the messages stay on disk
		}
		if err != nil {
			s.notLoaded(p.SID, err)
			return
		}
		if !s.fill(t, &p, found, whole) {
			return
		}
	}
}

// Lacks says whether LoadMessages has something to read.
func (s *Session) Lacks() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.lacksNext() || s.lacksOldest()
}

// lacksNext says whether the next message to send is on disk only, could be sent now, and
// no goroutine reads it; s.Mu is held.
func (s *Session) lacksNext() bool {
	return s.Peer != nil && !s.loading && s.Inflight < s.places(&s.Routed) && s.Routed.LacksMessage()
}

// toLoad says which part of the queue is to be read next. any: there is one.
func (s *Session) toLoad() (p queue.Page, any bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !s.lacksNext() && !s.lacksOldest() {
		return p, false
	}
	s.loading = true
	q := &s.Routed
	p = queue.Page{SID: s.SID, From: q.Middle.From, To: q.Middle.To, Messages: queue.PageMessages, Bytes: queue.PageBytes}
	if s.Env.Memory.Tight() {
		p.Messages, p.Bytes = queue.AwayWindowMessages, queue.AwayWindowBytes
	}
	if q.Candidate() == nil {
		return p, true
	}
	bytes := int64(0)
	for _, it := range q.Resend {
		if it.Message != nil || it.State != queue.Sent {
			continue
		}
		p.Seqs = append(p.Seqs, it.Seq)
		if bytes += int64(it.Size); bytes >= p.Bytes || len(p.Seqs) == p.Messages {
			break
		}
	}
	return p, true
}

// notLoaded closes the connection of a session whose queue could not be read. The
// messages stay on disk, and the client's next connection tries again.
func (s *Session) notLoaded(sid uint64, err error) {
	s.Mu.Lock()
	s.loading = false
	c, same := s.Peer, s.SID == sid
	s.Mu.Unlock()
	if !same {
		return
	}
	s.Env.Log.Error("cannot read the queue of a session", "client", s.ID, "error", err)
	if c != nil {
		c.Disconnect(mqtt.UnspecifiedError, "the session's queue could not be read")
	}
}

// fill adds loaded messages to the queue and sends what can be sent. If a message is
// missing or cannot be decoded, fill ends the session: a client must not miss a message
// without notice. It returns whether there may be more to load.
func (s *Session) fill(t *Turn, p *queue.Page, found []queue.Loaded, whole bool) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	defer queue.Release(found)
	s.loading = false
	if s.Ended || s.SID != p.SID {
		return false
	}
	if hole := s.fillIn(p, found, whole); hole != "" {
		s.Env.Log.Error("ending a session because its queue on disk has a hole", "client", s.ID, "problem", hole)
		t.EndSession(s)
		return false
	}
	s.shed(t)
	s.Pump(t)
	s.Evict()
	if s.Peer != nil {
		t.MarkDirty(s.Peer)
	}
	return true
}

// fillIn moves messages from found to the queue. hole says which message is missing;
// empty: none.
func (s *Session) fillIn(p *queue.Page, found []queue.Loaded, whole bool) (hole string) {
	q := &s.Routed
	for i := range found {
		l := &found[i]
		if l.Err != nil {
			return fmt.Sprintf("message %d: %v", l.Seq, l.Err)
		}
		if len(p.Seqs) > 0 {
			for _, it := range q.Resend {
				if it.Seq == l.Seq && it.State == queue.Sent && it.Message == nil {
					it.Message, l.It.Message = l.It.Message, nil
					s.Charges(q).Hold(q, it)
				}
			}
			continue
		}
		it := l.It
		it.Seq, it.Saved, it.Held = l.Seq, true, true
		it.Size, it.Dup = uint32(it.Message.Size()), l.Seq < q.SentTo
		if !q.Load(it) {
			return ""
		}
		s.Charges(q).Hold(q, &it)
		l.It.Message = nil
	}
	if len(p.Seqs) > 0 {
		for _, it := range q.Resend {
			if it.Message == nil && it.State == queue.Sent && slices.Contains(p.Seqs, it.Seq) {
				return fmt.Sprintf("message %d is missing", it.Seq)
			}
		}
		return ""
	}
	if whole {
		if q.Middle.To == p.To && q.Middle.Count != 0 {
			return fmt.Sprintf("%d messages are missing", q.Middle.Count)
		}
		q.Middle.From = p.To
	}
	return ""
}
