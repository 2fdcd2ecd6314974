package engine

import (
	"github.com/holdfast-mqtt/holdfast/internal/engine/watchlist"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// watch is one session's registration for one key.
type watch struct {
	session  *session
	shard    *shard
	key      string
	watchers *watchers // of the key; those of its shard while it has some
	index    int       // in watchers.All; guarded by the shard's lock
}

// watchers are the watches of one key, to be notified of its changes; guarded by the shard's
// lock.
type watchers = watchlist.List[*watch]

// Place implements watchlist.Element.
func (w *watch) Place() *int { return &w.index }

// watch registers the session for the key; the shard's lock is held. It is told of no
// change that was applied before. A key that has expired is therefore deleted first, so
// that the new watch is not told of that deletion either.
func (s *session) watch(sh *shard, key []byte, hash uint64, reply *statestore.Reply) {
	s.e.expire(sh, sh.table.Get(key, hash))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() || s.watches[string(key)] != nil {
		return
	}
	cost := watchCost(key)
	if b := s.watchBound(cost); b != statestore.NoBound {
		*reply = statestore.Reply{Kind: statestore.Error, Fault: statestore.QuotaExceeded, Bound: b}
		return
	}
	s.watchBytes += cost
	w := &watch{session: s, shard: sh, watchers: sh.watchers[string(key)]}
	if w.watchers == nil {
		w.key, w.watchers = string(key), &watchers{}
		sh.watchers[w.key] = w.watchers
	} else {
		w.key = w.watchers.All[0].key
	}
	w.watchers.Add(w)
	if s.watches == nil {
		s.watches = map[string]*watch{}
	}
	s.watches[w.key] = w
	s.e.watches.Add(1)
}

// watchCost is what a watch is charged with: its key, and about what it takes besides.
func watchCost[K string | []byte](key K) int64 { return int64(len(key)) + 200 }

// watchBound returns the bound that one more watch would pass; otherwise the watch is
// charged to the memory. mu is held.
func (s *session) watchBound(cost int64) statestore.Bound {
	o := &s.e.o
	switch {
	case len(s.watches) >= o.MaxWatches:
		return statestore.MaxWatches
	case s.watchBytes+cost > o.MaxWatchBytes:
		return statestore.MaxWatchBytes
	case !o.Memory.Take(memory.Watches, cost):
		return statestore.MaxMemory
	}
	return statestore.NoBound
}

// stop ends the session's watch of the key and returns the batch that the reply
// has to wait for: that of the key's last change, so that the reply follows
// every event. The shard's lock is held.
func (s *session) stop(sh *shard, key []byte, hash uint64, reply *statestore.Reply) journal.Seq {
	batch := journal.Seq(sh.table.Get(key, hash).Batch())
	s.mu.Lock()
	w := s.watches[string(key)]
	if w != nil {
		delete(s.watches, string(key))
		cost := watchCost(key)
		s.watchBytes -= cost
		s.e.o.Memory.Credit(memory.Watches, cost)
	}
	s.mu.Unlock()
	if w == nil {
		*reply = statestore.Reply{Kind: statestore.Count}
		return batch
	}
	w.end()
	s.e.watches.Add(-1)
	return batch
}

// watchesAny says whether the session watches any key.
func (s *session) watchesAny() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches) > 0
}

// watching returns the session's watch of the key, nil if it has none.
func (s *session) watching(key []byte) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches[string(key)]
}

// end takes the watch from its key. The shard's lock is held.
func (w *watch) end() {
	w.watchers.Remove(w, w.session.e.journal.Complete())
	if len(w.watchers.All) == 0 {
		delete(w.shard.watchers, w.key)
	}
}

// Watchers implements Engine.
func (e *Local) Watchers(key []byte, most int) (some []*Origin, all int) {
	sh, _ := e.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ws := sh.watching(key)
	if ws == nil {
		return nil, 0
	}
	for _, w := range ws.All[:min(max(most, 0), len(ws.All))] {
		some = append(some, &w.session.origin)
	}
	return some, len(ws.All)
}

// Watching implements Engine.
func (e *Local) Watching(is func(o *Origin, key []byte) bool) (found []*Origin) {
	for i := range e.shards {
		sh := &e.shards[i]
		sh.mu.Lock()
		for key, ws := range sh.watchers {
			for _, w := range ws.All {
				if is(&w.session.origin, []byte(key)) {
					found = append(found, &w.session.origin)
				}
			}
		}
		sh.mu.Unlock()
	}
	return found
}
