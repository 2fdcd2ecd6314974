package topic

import (
	"bytes"
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

// wildTrie holds the filters with wildcards by level. Its depth is bounded by
// the most levels of a filter that was inserted, which the caller bounds.
type wildTrie[V comparable] struct {
	count atomic.Int64 // pairs; lets match go by without the lock
	mu    lockrank.RWMutex[lockrank.WildFilters]
	root  node[V] // mu
}

// node is a level of the trie, under the lock of the trie.
type node[V comparable] struct {
	children map[string]*node[V]
	plus     *node[V] // the child `+`
	here     *set[V]  // filters that end with this level
	below    *set[V]  // filters that go on with `#`: this level and all below
}

func (n *node[V]) empty() bool {
	return len(n.children) == 0 && n.plus == nil && n.here == nil && n.below == nil
}

func (n *node[V]) child(level string) *node[V] {
	if level == "+" {
		return n.plus
	}
	return n.children[level]
}

func (n *node[V]) addChild(level string) *node[V] {
	c := &node[V]{}
	if level == "+" {
		n.plus = c
		return c
	}
	if n.children == nil {
		n.children = make(map[string]*node[V])
	}
	n.children[strings.Clone(level)] = c
	return c
}

func (n *node[V]) dropChild(level string) {
	if level == "+" {
		n.plus = nil
		return
	}
	delete(n.children, level)
	if len(n.children) == 0 {
		n.children = nil
	}
}

func (t *wildTrie[V]) insert(filter string, v V) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := &t.root
	for rest := filter; ; {
		level, after, more := strings.Cut(rest, "/")
		if level == "#" {
			return t.add(&n.below, v)
		}
		c := n.child(level)
		if c == nil {
			c = n.addChild(level)
		}
		n = c
		if !more {
			return t.add(&n.here, v)
		}
		rest = after
	}
}

func (t *wildTrie[V]) add(s **set[V], v V) bool {
	if *s == nil {
		*s = &set[V]{}
	}
	if !(*s).insert(v) {
		return false
	}
	t.count.Add(1)
	return true
}

func (t *wildTrie[V]) remove(filter string, v V) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.root.remove(filter, v) {
		return false
	}
	t.count.Add(-1)
	return true
}

// remove removes v from under the rest of a filter, and the nodes that
// are empty then.
func (n *node[V]) remove(filter string, v V) bool {
	level, after, more := strings.Cut(filter, "/")
	if level == "#" {
		return drop(&n.below, v)
	}
	c := n.child(level)
	if c == nil {
		return false
	}
	var removed bool
	if more {
		removed = c.remove(after, v)
	} else {
		removed = drop(&c.here, v)
	}
	if c.empty() {
		n.dropChild(level)
	}
	return removed
}

func drop[V comparable](s **set[V], v V) bool {
	if *s == nil || !(*s).remove(v) {
		return false
	}
	if len((*s).values) == 0 {
		*s = nil
	}
	return true
}

func (t *wildTrie[V]) match(name []byte, out []V) []V {
	if t.count.Load() == 0 {
		return out
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !isSystem(name) {
		return t.root.match(name, out)
	}
	// Of a name that begins with $ the first level matches only itself
	// [MQTT-4.7.2-1].
	level, rest, more := bytes.Cut(name, slash)
	if c := t.root.children[string(level)]; c != nil {
		out = c.matchRest(rest, more, out)
	}
	return out
}

var slash = []byte{'/'}

// match appends what matches the rest of a name, which begins at a child of n.
func (n *node[V]) match(rest []byte, out []V) []V {
	out = n.below.appendTo(out)
	level, after, more := bytes.Cut(rest, slash)
	if n.plus != nil {
		out = n.plus.matchRest(after, more, out)
	}
	if c := n.children[string(level)]; c != nil {
		out = c.matchRest(after, more, out)
	}
	return out
}

// matchRest goes on below n, or ends there if the name does.
func (n *node[V]) matchRest(rest []byte, more bool, out []V) []V {
	if more {
		return n.match(rest, out)
	}
	out = n.here.appendTo(out)
	return n.below.appendTo(out)
}
