package session

import (
	"errors"

	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// SaveSession journals the session, now that its client is connected, with its will. It gives
// 0 if there is nothing for the disk: of a session that ends with its connection only the
// will is on disk, which is published after a crash. A session that has been on disk stays
// there although it is to end with this connection: part of its queue may be nowhere else.
// After a crash it has expired. s.Mu is held.
func (e *Env) SaveSession(s *Session) journal.Seq {
	if s.SID == 0 {
		if !s.Persistent() {
			return e.saveWill(s)
		}
		s.SID = e.LastSID.Add(1)
		s.Routed.Start(0)
	}
	q := &s.Routed
	q.Mark = s.mayHaveSent() + markAhead
	a := e.Journal.Begin()
	a.Set(rows.SessionKey(s.ID), s.row(q.Mark))
	if s.Will != nil {
		s.Will.Number = s.SID
		a.Set(rows.WillKey(s.SID), s.Will.Row())
	} else {
		a.Delete(rows.WillKey(s.SID))
	}
	q.MarkBatch = a.End(nil)
	return q.MarkBatch
}

// saveWill journals the will of a session that isn't on disk, 0: it has none. After a
// crash it is found without a session, and published. s.Mu is held.
func (e *Env) saveWill(s *Session) journal.Seq {
	if s.Will == nil {
		return 0
	}
	if s.Will.Number == 0 {
		s.Will.Number = e.LastSID.Add(1)
	}
	a := e.Journal.Begin()
	a.Set(rows.WillKey(s.Will.Number), s.Will.Row())
	return a.End(nil)
}

// WithdrawWill forgets the session's will, which won't be published, and its row if
// the session isn't on disk: otherwise that goes with what SaveAway or DeleteSession
// journals. s.Mu is held.
func (e *Env) WithdrawWill(s *Session) {
	if s.Will.Number != 0 && s.SID == 0 {
		a := e.Journal.Begin()
		a.Delete(rows.WillKey(s.Will.Number))
		a.End(nil)
	}
	e.Memory.Credit(memory.Sessions, s.Will.Charged)
	s.Will.Message.Release()
	s.Will = nil
}

// SaveAway journals that the client has gone, and what becomes of its will; one
// that is being published goes with its publication. s.Mu is held.
func (e *Env) SaveAway(s *Session, publishing bool) {
	a := e.Journal.Begin()
	a.Set(rows.SessionKey(s.ID), s.row(s.mayHaveSent()))
	switch {
	case s.Will != nil:
		a.Set(rows.WillKey(s.SID), s.Will.Row())
	case !publishing:
		a.Delete(rows.WillKey(s.SID))
	}
	a.End(nil)
}

// row gives the session's row, which says that messages before sent may have been sent.
func (s *Session) row(sent uint64) []byte {
	r := rows.Session{SID: s.SID, Expiry: s.Expiry, Away: s.Away, Sent: sent, QueueFull: s.queueFull, Owner: s.Owner()}
	return r.Row()
}

// DeleteSession journals that the session isn't on disk any more; s.Mu is held.
func (e *Env) DeleteSession(s *Session, keepWill bool) journal.Seq {
	if s.SID == 0 {
		return 0
	}
	a := e.Journal.Begin()
	a.Delete(rows.SessionKey(s.ID))
	if !keepWill {
		a.Delete(rows.WillKey(s.SID))
	}
	for _, kind := range []rows.Kind{rows.SubscriptionKind, rows.ReceivedKind, rows.OwedKind} {
		a.DeleteRange(kind.Of(s.SID))
	}
	// Messages on disk only may be in other queues, too: their rows say so.
	m := s.Routed.Middle
	first, end := rows.QueuedKind.Of(s.SID)
	a.DeleteRange(first, rows.QueueKey(s.SID, m.From))
	a.DeleteRange(rows.QueueKey(s.SID, m.To), end)
	batch := a.End(nil)
	if m.Count > 0 {
		e.deleteLater(s.SID, m)
	}
	s.SID = 0
	return batch
}

// deleteLater deletes messages that are on disk only, of a session or group that has ended,
// once it has seen what they refer to. Until then their rows are what a crash would leave.
func (e *Env) deleteLater(sid uint64, m queue.OnDisk) {
	e.Background(func(*Turn) {
		numbers, err := e.Pages.Numbers(sid, m.From, m.To)
		if err != nil {
			if !errors.Is(err, journal.ErrClosed) {
				e.Log.Error("cannot read the queue of a session that has ended; it is deleted at the next start", "error", err)
			}
			return
		}
		a := e.Journal.Begin()
		a.DeleteRange(rows.QueueKey(sid, m.From), rows.QueueKey(sid, m.To))
		a.End(nil)
		for _, n := range numbers {
			e.Payloads.Release(e.Journal, n)
		}
	})
}

func (sub *Subscription) row() []byte {
	r := rows.Subscription{QoS: sub.QoS, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished, ID: sub.ID}
	return r.Row()
}

// SaveSubscriptions journals new or changed subscriptions and the retained messages
// that they are owed; 0: nothing to wait for.
func (e *Env) SaveSubscriptions(s *Session, subs []*Subscription, replays []*Replay) journal.Seq {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.SID == 0 || len(subs) == 0 {
		return 0
	}
	a := e.Journal.Begin()
	for _, sub := range subs {
		a.Set(rows.SubscriptionKey(s.SID, sub.Filter), sub.row())
	}
	for _, r := range replays {
		r.Key = rows.OwedKey(s.SID, e.LastSID.Add(1))
		a.Set(r.Key, r.Owed.Row())
	}
	return a.End(nil)
}

// DeleteSubscriptions journals the end of subscriptions; 0: nothing to wait for.
func (e *Env) DeleteSubscriptions(s *Session, subs []*Subscription) journal.Seq {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.SID == 0 || len(subs) == 0 {
		return 0
	}
	a := e.Journal.Begin()
	for _, sub := range subs {
		if s.Subs[sub.Filter] == nil { // else it was made again meanwhile, and has the row
			a.Delete(rows.SubscriptionKey(s.SID, sub.Filter))
		}
	}
	return a.End(nil)
}
