package topic

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// indexShards is the number of locks that exact filters and names are spread
// over; a power of two.
const indexShards = 64

// Index finds the values (subscriptions) whose filters match a topic name. Its
// zero value is empty and ready to use; it is safe for concurrent use.
//
// A filter without wildcards is a look-up in a map, spread over shards. Filters
// with wildcards are in one trie by level, under a read-write lock that Match
// doesn't even touch while there are none.
type Index[V comparable] struct {
	exact [indexShards]exactShard[V]
	wild  wildTrie[V]
	len   atomic.Int64

	generation atomic.Uint64
}

type exactShard[V comparable] struct {
	mu   lockrank.RWMutex[lockrank.ExactFilters]
	sets map[string]*set[V] // mu
	_    [32]byte           // keeps two shards' locks off one cache line
}

var seed = maphash.MakeSeed()

func shardOf(name string) int { return int(maphash.String(seed, name) % indexShards) }

func shardOfBytes(name []byte) int { return int(maphash.Bytes(seed, name) % indexShards) }

// Insert adds v under a valid filter (the part after the group, if it is
// shared). added is false if it was there.
func (x *Index[V]) Insert(filter string, v V) (added bool) {
	if HasWildcard(filter) {
		added = x.wild.insert(filter, v)
	} else {
		added = x.exact[shardOf(filter)].insert(filter, v)
	}
	if added {
		x.len.Add(1)
		x.generation.Add(1)
	}
	return added
}

// Remove removes v from under filter. removed is false if it was not there.
func (x *Index[V]) Remove(filter string, v V) (removed bool) {
	if HasWildcard(filter) {
		removed = x.wild.remove(filter, v)
	} else {
		removed = x.exact[shardOf(filter)].remove(filter, v)
	}
	if removed {
		x.len.Add(-1)
		x.generation.Add(1)
	}
	return removed
}

// Len is the number of pairs of filter and value.
func (x *Index[V]) Len() int { return int(x.len.Load()) }

// Generation changes with every Insert and Remove, before they return: what Match
// found stands as long as the generation that was read before it.
func (x *Index[V]) Generation() uint64 { return x.generation.Load() }

// Match appends to out every value whose filter matches the name, once for each
// such filter, in no particular order. It allocates only to let out grow.
func (x *Index[V]) Match(name []byte, out []V) []V {
	out, _ = x.MatchCounting(name, out)
	return out
}

// MatchCounting is Match, and says how many pieces of filters with wildcards were compared with
// the name: it is work also if nothing matches.
func (x *Index[V]) MatchCounting(name []byte, out []V) (matches []V, compared int) {
	out = x.exact[shardOfBytes(name)].match(name, out)
	return x.wild.match(name, out)
}

func (s *exactShard[V]) insert(filter string, v V) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := s.sets[filter]
	if values == nil {
		if s.sets == nil {
			s.sets = make(map[string]*set[V])
		}
		values = &set[V]{}
		s.sets[strings.Clone(filter)] = values
	}
	return values.insert(v)
}

func (s *exactShard[V]) remove(filter string, v V) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := s.sets[filter]
	if values == nil || !values.remove(v) {
		return false
	}
	if len(values.values) == 0 {
		delete(s.sets, filter)
	}
	return true
}

func (s *exactShard[V]) match(name []byte, out []V) []V {
	s.mu.RLock()
	if values := s.sets[string(name)]; values != nil {
		out = append(out, values.values...)
	}
	s.mu.RUnlock()
	return out
}
