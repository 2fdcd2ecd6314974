package session

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Replay is the way of the retained messages to one new subscription: a page at
// a time, when the session's queue has room. For a session on disk what is still
// owed is on disk, too: a row that moves on in the batch of each page's messages.
type Replay struct {
	Sub     *Subscription
	Owed    rows.Owed   // Routed: at most one for each stripe. Again: the SUBSCRIBE named the filter so many times more
	Fresh   bool        // its SUBSCRIBE is still being handled
	Key     []byte      // of its row; nil: it has none
	Durable journal.Seq // the goroutine's that replays: batches up to this one are on disk
	Work    int         // what it has done, in units of pace.go
}

// Replays are the replays of a session, in order. They are apart from the session, as
// nearly none has any.
type Replays struct{ list []*Replay }

// Len is how many there are; none of nil.
func (rs *Replays) Len() int {
	if rs == nil {
		return 0
	}
	return len(rs.list)
}

// First is the one that sends; nil: there is none.
func (rs *Replays) First() *Replay {
	if rs == nil {
		return nil
	}
	return rs.list[0]
}

// AddReplays puts replays behind those that there are; s.Mu is held, or no other
// goroutine knows the session yet.
func (s *Session) AddReplays(replays ...*Replay) {
	if s.Replays == nil {
		s.Replays = new(Replays)
	}
	s.Replays.list = append(s.Replays.list, replays...)
}

// RemoveReplays removes those that gone says; s.Mu is held.
func (s *Session) RemoveReplays(gone func(r *Replay) bool) {
	if s.Replays == nil {
		return
	}
	if s.Replays.list = slices.DeleteFunc(s.Replays.list, gone); len(s.Replays.list) == 0 {
		s.Replays = nil
	}
}

// ReplayAhead is how many messages a replay keeps in the queue at the most.
const ReplayAhead = 64

// End notes that the replay has come to its end. Its session's lock is held.
func (r *Replay) End() {
	if r.Sub.Replay == r {
		r.Sub.Replay = nil
	}
}

// Stale says whether the subscription is gone, or has been made again since,
// which begins another replay. Its session's lock is held.
func (r *Replay) Stale() bool { return r.Sub.Gone || r.Sub.Replay != r }

// Replayed gives what becomes of the replay's row, after a page of it: it goes into
// the batch that has the page's messages, so that after a crash the replay goes on
// behind them. A replay that is to begin anew has more to come.
func (s *Session) Replayed(t *Turn, r *Replay, began string, more *bool) *message.PublishRows {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !*more && r.Owed.Again > 0 && !r.Stale() {
		r.Owed.Again--
		r.Owed.After = ""
		*more = true
	}
	switch {
	case r.Key == nil || s.Ended:
	case !*more:
		t.Deletes = append(t.Deletes, r.Key)
	case r.Owed.After != began:
		return &message.PublishRows{Owed: r.Key, OwedRow: r.Owed.Row()}
	}
	return nil
}

// MayReplay says whether there is something to replay now that no goroutine replays.
func (s *Session) MayReplay() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return !s.Replaying && s.Replays != nil && s.Peer != nil && s.RoomToReplay()
}

func (s *Session) RoomToReplay() bool {
	return s.Routed.Waiting()+s.Routed.Middle.Count < ReplayAhead && !s.Peer.Transport.Full()
}
