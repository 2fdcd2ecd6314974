package engine

import (
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/engine/quota"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// session is one connection's way into the engine.
type session struct {
	e      *Local
	origin Origin
	closed atomic.Bool  // written under mu
	owner  *quota.Owner // guarded by the engine's mu: nil until it has written a key

	mu      lockrank.Mutex[lockrank.StoreSession]
	watches map[string]*watch // guarded by mu: by key

	watchBytes int64 // guarded by mu: what they are charged with
}

// Do runs one command; see Session.
func (s *session) Do(c *Call) Wait {
	c.e = s.e
	switch c.Command.Verb {
	case statestore.Get:
		return s.get(c)
	case statestore.Set, statestore.Del, statestore.VDel:
		return s.write(c)
	case statestore.KeyNotify:
		return s.keyNotify(c)
	case statestore.Scan:
		return s.scan(c)
	case statestore.Load, statestore.Store, statestore.Done:
		return s.message(c)
	default: // the rules know what to say
		statestore.Apply(&c.Command, statestore.Cell{}, &c.env, &c.res)
		return Wait{}
	}
}

// gone says whether no reply can reach the client any more.
func (s *session) gone() bool {
	return s.closed.Load() || s.origin.Gone != nil && s.origin.Gone()
}

// after returns what a reply waits for that shows the key as of the batch. If the session
// watches the key, the reply also follows the notification of that change.
func (s *session) after(batch journal.Seq, key []byte) Wait {
	if batch <= s.e.journal.Complete() {
		return Wait{}
	}
	if s.watching(key) == nil {
		return Wait{Batch: batch}
	}
	return s.ask()
}

// ask registers the origin's Waiter for everything that was appended so far, so that the reply
// comes after the callbacks of all these changes. No lock is held.
func (s *session) ask() Wait {
	j, last := s.e.journal, s.e.journal.Last()
	switch {
	case s.origin.Waiter == nil:
		return Wait{Batch: last}
	case !j.Await(last, s.origin.Waiter):
		return Wait{}
	}
	j.Admit()
	return Wait{Batch: last, Asked: true}
}

// get runs GET: nothing here allocates, and the clock is read for a key with a deadline only.
func (s *session) get(c *Call) Wait {
	var cell statestore.Cell
	d, key := &c.decision, c.Command.Key
	sh, hash := s.e.shard(key)
	sh.mu.Lock()
	r := sh.table.Get(key, hash)
	cell.Entry = d.read(sh, r)
	batch, lasting := journal.Seq(r.Batch()), cell.Entry != nil && r.Lasting()
	sh.mu.Unlock()
	d.env.NowMs = 0
	if cell.Entry != nil && cell.Entry.DeadlineMs != 0 {
		d.env.NowMs = s.e.nowMs()
	}
	statestore.Apply(&c.Command, cell, &d.env, &d.res)
	d.res.Reply.Lasting = lasting
	return s.after(batch, key)
}

// write runs SET, DEL and VDEL.
func (s *session) write(c *Call) Wait {
	s.e.journal.Admit()
	d, cmd := &c.decision, &c.Command
	d.memo = nil
	sh, hash := s.e.shard(cmd.Key)
	for {
		sh.mu.Lock()
		r := sh.table.Get(cmd.Key, hash)
		d.decide(sh, cmd.Key, r, s, func(d *decision, stored *statestore.Entry) {
			statestore.Apply(cmd, statestore.Cell{Entry: stored}, &d.env, &d.res)
		})
		if d.res.Changed {
			wait := d.carryOut(sh, cmd.Key, hash, r, s)
			sh.mu.Unlock()
			return wait
		}
		batch := journal.Seq(r.Batch())
		sh.mu.Unlock()
		if !s.e.makeRoom(d.res.Reply.Bound) {
			s.e.sayFull(d.res.Reply.Bound)
			return s.after(batch, cmd.Key)
		}
	}
}

// keyNotify registers a watch, or ends it. The answer to STOP comes after every event.
func (s *session) keyNotify(c *Call) Wait {
	d, cmd := &c.decision, &c.Command
	d.look()
	sh, hash := s.e.shard(cmd.Key)
	sh.mu.Lock()
	statestore.Apply(cmd, statestore.Cell{}, &d.env, &d.res)
	var batch journal.Seq
	if d.res.Reply.Kind == statestore.OK {
		if cmd.Stop {
			batch = s.stop(sh, cmd.Key, hash, &d.res.Reply)
		} else {
			s.watch(sh, cmd.Key, hash, &d.res.Reply)
		}
	}
	sh.mu.Unlock()
	if batch <= s.e.journal.Complete() {
		return Wait{}
	}
	return s.ask()
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
	s.e.o.Memory.Credit(memory.Watches, bytes)
	s.e.mu.Lock()
	if s.owner != nil {
		s.e.quota.Leave(s.owner)
		s.owner = nil
	}
	s.e.mu.Unlock()
}
