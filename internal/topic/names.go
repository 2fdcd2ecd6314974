package topic

import (
	"math/bits"
	"math/rand/v2"
	"strings"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Names maps topic names to values (retained messages) and finds the names that
// a filter matches, page by page. Its zero value is empty and ready to use; it is
// safe for concurrent use.
//
// A name is found by a sharded map; the order that pages need is a skip list of
// the same entries, locked only when names come and go and, for a bounded number
// of steps at a time, by Match, which never holds a shard's lock together with it.
type Names[V any] struct {
	shards [indexShards]nameShard[V]
	list   nameList[V]
	len    atomic.Int64
}

type nameShard[V any] struct {
	mu      lockrank.RWMutex[lockrank.Names]
	entries map[string]*Entry[V] // mu
	_       [32]byte             // keeps two shards' locks off one cache line
}

// Entry is a name and its place in the list. Value gives its value.
type Entry[V any] struct {
	name    string
	value   V           // its shard's lock
	removed bool        // its shard's lock
	shard   uint8       // number of the shard, so that its value is found without a hash
	next    *Entry[V]   // list lock: level 0
	up      []*Entry[V] // list lock: levels 1 and up, nil for three of four
}

// Put sets the value of name. old is what it replaced.
func (x *Names[V]) Put(name string, v V) (old V, replaced bool) {
	shard := shardOf(name)
	s := &x.shards[shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[name]; e != nil {
		old, e.value = e.value, v
		return old, true
	}
	if s.entries == nil {
		s.entries = make(map[string]*Entry[V])
	}
	e := &Entry[V]{name: strings.Clone(name), value: v, shard: uint8(shard)}
	s.entries[e.name] = e
	x.list.insert(e)
	x.len.Add(1)
	return old, false
}

// Get returns the value of name.
func (x *Names[V]) Get(name []byte) (v V, found bool) {
	s := &x.shards[shardOfBytes(name)]
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.entries[string(name)]; e != nil {
		return e.value, true
	}
	return v, false
}

// Delete removes name and returns the value that it had.
func (x *Names[V]) Delete(name []byte) (old V, found bool) {
	s := &x.shards[shardOfBytes(name)]
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[string(name)]
	if e == nil {
		return old, false
	}
	delete(s.entries, e.name)
	e.removed = true
	x.list.remove(e)
	x.len.Add(-1)
	return e.value, true
}

// Len is the number of names.
func (x *Names[V]) Len() int { return int(x.len.Load()) }

const (
	// pageNames and pageSteps bound what Match does under the list's lock at a
	// time: names found, and entries looked at.
	pageNames = 128
	pageSteps = 256
)

// Match calls yield for at most limit names that the filter matches, in byte order,
// beginning after the name `after` (empty: from the start). If it stopped at
// limit, more is true and next is what to pass as after for the following page,
// which may turn out to be empty. No lock is held during yield, which may use x.
//
// Names that exist during the whole of a walk are found exactly once; of those
// that come or go meanwhile, some. Value says whether one still exists.
//
// Subtrees that the filter excludes are jumped over: "a/+/c" costs two jumps for
// each second level, whatever is below it.
func (x *Names[V]) Match(filter string, after string, limit int, yield func(e *Entry[V])) (next string, more bool) {
	if limit <= 0 {
		return after, true
	}
	if !HasWildcard(filter) {
		if e := x.entry(filter); e != nil && after < filter {
			yield(e)
		}
		return "", false
	}
	w := walk[V]{filter: filter}
	w.start(after)
	for limit > 0 {
		x.list.collect(&w, min(limit, pageNames))
		for _, e := range w.found[:w.n] {
			yield(e)
		}
		limit -= w.n
		if w.done {
			return "", false
		}
	}
	return w.last, true
}

// Name is the entry's name.
func (e *Entry[V]) Name() string { return e.name }

// Value is the present value of the name of an entry that Match has found. It is read
// without a search, unless the name has been deleted since; found is false if it hasn't
// been put again.
func (x *Names[V]) Value(e *Entry[V]) (v V, found bool) {
	s := &x.shards[e.shard]
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e.removed {
		if e = s.entries[e.name]; e == nil {
			return v, false
		}
	}
	return e.value, true
}

// entry finds a name; nil: there is none.
func (x *Names[V]) entry(name string) *Entry[V] {
	s := &x.shards[shardOf(name)]
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.entries[name]
}

// maxHeight is the number of levels of the skip list: enough for 4^12 names.
const maxHeight = 12

// nameList is a skip list in byte order of the names, a quarter of each level's
// entries rising to the next.
type nameList[V any] struct {
	mu     lockrank.RWMutex[lockrank.NameList]
	head   [maxHeight]*Entry[V] // mu
	height int                  // mu: levels in use
}

func (e *Entry[V]) at(level int) *Entry[V] {
	if level == 0 {
		return e.next
	}
	return e.up[level-1]
}

func (e *Entry[V]) set(level int, to *Entry[V]) {
	if level == 0 {
		e.next = to
		return
	}
	e.up[level-1] = to
}

// after is the entry that follows e at a level; a nil e is the head.
func (l *nameList[V]) after(e *Entry[V], level int) *Entry[V] {
	if e == nil {
		return l.head[level]
	}
	return e.at(level)
}

func (l *nameList[V]) link(e *Entry[V], level int, to *Entry[V]) {
	if e == nil {
		l.head[level] = to
		return
	}
	e.set(level, to)
}

// before fills prev with the last entry of each level whose name is below name.
func (l *nameList[V]) before(name string, prev *[maxHeight]*Entry[V]) {
	var e *Entry[V]
	for level := l.height - 1; level >= 0; level-- {
		for n := l.after(e, level); n != nil && n.name < name; n = n.at(level) {
			e = n
		}
		prev[level] = e
	}
}

func (l *nameList[V]) insert(e *Entry[V]) {
	height := 1 + min(bits.TrailingZeros64(rand.Uint64())/2, maxHeight-1)
	if height > 1 {
		e.up = make([]*Entry[V], height-1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.height = max(l.height, height)
	var prev [maxHeight]*Entry[V]
	l.before(e.name, &prev)
	for level := range height {
		e.set(level, l.after(prev[level], level))
		l.link(prev[level], level, e)
	}
}

// remove takes e out. Its own links stay and are never followed: a walk goes on by
// name, not by entry.
func (l *nameList[V]) remove(e *Entry[V]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var prev [maxHeight]*Entry[V]
	l.before(e.name, &prev)
	for level := range 1 + len(e.up) {
		l.link(prev[level], level, e.at(level))
	}
}

// seek is the first entry whose name is not below key.
func (l *nameList[V]) seek(key []byte) *Entry[V] {
	var e *Entry[V]
	for level := l.height - 1; level >= 0; level-- {
		for n := l.after(e, level); n != nil && n.name < string(key); n = n.at(level) {
			e = n
		}
	}
	return l.after(e, 0)
}

// walk is a walk through the names that a filter matches.
type walk[V any] struct {
	filter string
	key    []byte // where to go on: no name below it is wanted
	last   string // the last entry looked at
	done   bool   // nothing is wanted any more
	found  [pageNames]*Entry[V]
	n      int // entries in found
}

// start sets the walk to the first name after the given one.
func (w *walk[V]) start(after string) {
	if after == "" {
		w.key = append(w.key, w.filter[:strings.IndexAny(w.filter, "+#")]...)
		if n := len(w.key); n > 0 {
			w.key = w.key[:n-1] // "a/#" also matches "a"
		}
		return
	}
	w.key = append(append(w.key, after...), 0) // the least name above after
}

// collect fills found with at most limit entries, and stops earlier when it has
// looked at pageSteps.
func (l *nameList[V]) collect(w *walk[V], limit int) {
	w.n = 0
	l.mu.RLock()
	defer l.mu.RUnlock()
	e := l.seek(w.key)
	for range pageSteps {
		if e == nil {
			w.done = true
			return
		}
		w.last = e.name
		verdict := w.judge(e.name)
		switch verdict {
		case matches:
			w.found[w.n] = e
			w.n++
			e = e.next
			if w.n == limit {
				w.key = append(append(w.key[:0], w.last...), 0)
				return
			}
		case step:
			e = e.next
		case jump:
			e = l.seek(w.key)
		case end:
			w.done = true
			return
		}
	}
	w.key = append(append(w.key[:0], w.last...), 0)
}

type verdict uint8

const (
	matches verdict = iota
	step            // this name does not match, the next may
	jump            // no name below w.key matches any more
	end             // no later name matches
)

// judge says how the walk goes on from name. With jump, it sets w.key.
//
// Names are in byte order. All names below a level "p/s/…" stand together there,
// and the least string above all of them is "p/s0", because '0' follows '/'. But
// between "p/s" itself and its subtree there may be others, such as "p/s !": they
// are met, and judged, on the way.
func (w *walk[V]) judge(name string) verdict {
	if name[0] == '$' && (w.filter[0] == '+' || w.filter[0] == '#') {
		return w.jumpTo("", "%") // '%' follows '$' [MQTT-4.7.2-1]
	}
	plus := -1   // where the last level that + stood for ends in name
	f, n := 0, 0 // where the current level begins
	for {
		if w.filter[f:] == "#" {
			return matches
		}
		fEnd, nEnd := levelEndOf(w.filter, f), levelEndOf(name, n)
		tail := w.filter[fEnd:] // "", "/#" or "/…"
		if level := w.filter[f:fEnd]; level == "+" {
			plus = nEnd
		} else if level != name[n:nEnd] {
			return w.jumpToLevel(name, n, level, tail, plus)
		}
		switch {
		case nEnd == len(name) && (tail == "" || tail == "/#"):
			return matches
		case nEnd == len(name):
			return step
		case tail == "":
			return w.jumpTo(name[:nEnd], "0") // over what is below
		}
		f, n = fEnd+1, nEnd+1
	}
}

// jumpToLevel finds where to go on from a name that differs from the filter in
// the level that begins at n: to the filter's level with the same levels before
// it, if that comes later; otherwise to what follows the last level that `+`
// stood for.
func (w *walk[V]) jumpToLevel(name string, n int, level, tail string, plus int) verdict {
	if tail == "" || tail == "/#" {
		if level > name[n:] {
			return w.jumpTo(name[:n], level)
		}
	}
	if tail != "" && level+"/" > name[n:] {
		w.key = append(append(append(w.key[:0], name[:n]...), level...), '/')
		return jump
	}
	if plus < 0 {
		return end
	}
	return w.jumpTo(name[:plus], "0")
}

func (w *walk[V]) jumpTo(prefix, rest string) verdict {
	w.key = append(append(w.key[:0], prefix...), rest...)
	return jump
}
