package engine

import (
	"sync/atomic"

	"holdfast/internal/journal"
	"holdfast/internal/lockrank"
	budget "holdfast/internal/memory"
	"holdfast/internal/statestore"
)

// session is one connection's way into the engine.
type session struct {
	e      *Local
	origin Origin
	closed atomic.Bool // written under mu
	owner  *owner      // guarded by the engine's mu: nil until it has written a key

	mu      lockrank.Mutex[lockrank.StoreSession]
	watches map[string]*watch // guarded by mu: by key

	watchBytes int64 // guarded by mu: what they are charged with
}

// Do runs one command; see Session.
func (s *session) Do(cmd *statestore.Command, c Completion) {
	t := s.e.newTurn(c)
	switch cmd.Verb {
	case statestore.Get:
		s.get(cmd, t)
	case statestore.Set, statestore.Del, statestore.VDel:
		s.write(cmd, t)
	case statestore.KeyNotify:
		s.keyNotify(cmd, t)
	case statestore.Scan:
		s.scan(cmd, t)
	case statestore.Load, statestore.Store, statestore.Done:
		s.message(cmd, t)
	default: // the rules know what to say
		statestore.Apply(cmd, statestore.Cell{}, &t.env, &t.res)
		t.answer(0)
	}
}

// gone says whether a reply can't reach the client any more.
func (s *session) gone() bool {
	return s.closed.Load() || s.origin.Gone != nil && s.origin.Gone()
}

// get is the short way: nothing here allocates, and the clock is only read for
// a key that has a deadline.
func (s *session) get(cmd *statestore.Command, t *turn) {
	var cell statestore.Cell
	var batch journal.Seq
	sh, hash := s.e.shard(cmd.Key)
	sh.mu.Lock()
	r := sh.table.find(cmd.Key, hash)
	cell.Entry, batch = t.read(sh, r), r.lastBatch()
	lasting := cell.Entry != nil && r.has(recordLarge)
	sh.mu.Unlock()
	if cell.Entry != nil && cell.Entry.DeadlineMs != 0 {
		t.env.NowMs = s.e.nowMs()
	}
	statestore.Apply(cmd, cell, &t.env, &t.res)
	t.res.Reply.Lasting = lasting
	if batch > s.e.journal.Complete() {
		t.answer(batch)
		return
	}
	t.completion.Reply(&t.res.Reply)
	t.releaseRead()
}

// write runs SET, DEL and VDEL.
func (s *session) write(cmd *statestore.Command, t *turn) {
	s.e.journal.Admit()
	sh, hash := s.e.shard(cmd.Key)
	for {
		sh.mu.Lock()
		r := sh.table.find(cmd.Key, hash)
		t.decide(sh, cmd.Key, r, s, func(t *turn, stored *statestore.Entry) {
			statestore.Apply(cmd, statestore.Cell{Entry: stored}, &t.env, &t.res)
		})
		if t.res.Changed {
			batch, given := t.commit(sh, cmd.Key, hash, r, s)
			sh.mu.Unlock()
			if !given {
				t.completion.ReplyWhenDurable(batch, &t.res.Reply)
				t.release()
			}
			return
		}
		batch := r.lastBatch()
		sh.mu.Unlock()
		if !s.e.makeRoom(t.res.Reply.Bound) {
			s.e.sayFull(t.res.Reply.Bound)
			t.answer(batch)
			return
		}
	}
}

// keyNotify registers a watch, or ends it.
func (s *session) keyNotify(cmd *statestore.Command, t *turn) {
	t.look()
	sh, hash := s.e.shard(cmd.Key)
	sh.mu.Lock()
	statestore.Apply(cmd, statestore.Cell{}, &t.env, &t.res)
	var batch journal.Seq
	if t.res.Reply.Kind == statestore.OK {
		if cmd.Stop {
			batch = s.stop(sh, cmd.Key, hash, &t.res.Reply)
		} else {
			s.watch(sh, cmd.Key, hash, &t.res.Reply)
		}
	}
	sh.mu.Unlock()
	t.answer(batch)
}

// Close drops the watches; see Session.
func (s *session) Close() {
	s.mu.Lock()
	watches, bytes := s.watches, s.watchBytes
	s.watches, s.watchBytes = nil, 0
	s.closed.Store(true)
	s.mu.Unlock()
	for _, w := range watches {
		w.shard.mu.Lock()
		w.end()
		w.shard.mu.Unlock()
	}
	s.e.watches.Add(-int64(len(watches)))
	s.e.o.Memory.Credit(budget.Watches, bytes)
	s.e.mu.Lock()
	s.e.left(s)
	s.e.mu.Unlock()
}
