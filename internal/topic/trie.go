package topic

import (
	"bytes"
	"strings"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// wildTrie holds the filters with wildcards, by level. A node stands for as many levels as all filters
// below it have in common, so there are at most twice as many nodes as filters: a filter of a hundred
// levels that no other filter shares takes one node, and is compared as a piece.
type wildTrie[V comparable] struct {
	count atomic.Int64 // pairs; lets match go by without the lock
	mu    lockrank.RWMutex[lockrank.WildFilters]
	root  node[V] // mu; it has no levels
}

// node is some levels of the trie, under the lock of the trie. But for the root, a node has a filter that
// ends with it, or several children.
type node[V comparable] struct {
	path     string              // its levels, one or more, with '/' between them
	children map[string]*node[V] // by their first level
	plus     *node[V]            // the child whose first level is +
	here     *set[V]             // filters that end with this node
	below    *set[V]             // filters that go on with `#`: this node and all below
}

// newNode is a node with a copy of the path, which may be a piece of a much longer filter.
func newNode[V comparable](path string) *node[V] { return &node[V]{path: strings.Clone(path)} }

func firstLevel(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

// child is the child with this first level; nil: there is none.
func (n *node[V]) child(first string) *node[V] {
	if first == "+" {
		return n.plus
	}
	return n.children[first]
}

// put makes c a child, in place of the one with the same first level.
func (n *node[V]) put(c *node[V]) {
	first := firstLevel(c.path)
	if first == "+" {
		n.plus = c
		return
	}
	if n.children == nil {
		n.children = make(map[string]*node[V])
	}
	delete(n.children, first) // the key is a part of the path of the former child
	n.children[first] = c
}

func (n *node[V]) dropChild(first string) {
	if first == "+" {
		n.plus = nil
		return
	}
	delete(n.children, first)
	if len(n.children) == 0 {
		n.children = nil
	}
}

// commonLevels is the length of the levels with which both begin. They have the first one in common.
func commonLevels(a, b string) (n int) {
	for i := 0; ; i++ {
		endA, endB := i == len(a), i == len(b)
		if (endA || a[i] == '/') && (endB || b[i] == '/') {
			n = i
		}
		if endA || endB || a[i] != b[i] {
			return n
		}
	}
}

func (t *wildTrie[V]) insert(filter string, v V) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := &t.root
	for rest := filter; rest != "#"; {
		c := n.child(firstLevel(rest))
		if c == nil {
			path, all := strings.CutSuffix(rest, "/#")
			c = newNode[V](path)
			n.put(c)
			if all {
				return t.add(&c.below, v)
			}
			return t.add(&c.here, v)
		}
		common := commonLevels(c.path, rest)
		if common < len(c.path) {
			c = n.split(c, common)
		}
		if common == len(rest) {
			return t.add(&c.here, v)
		}
		n, rest = c, rest[common+1:]
	}
	return t.add(&n.below, v)
}

// split puts a node with the first levels of a child, of so many bytes, between it and n.
func (n *node[V]) split(c *node[V], common int) *node[V] {
	upper := newNode[V](c.path[:common])
	n.put(upper)
	c.path = strings.Clone(c.path[common+1:])
	upper.put(c)
	return upper
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

// remove removes v from under the rest of a filter, and the nodes that need not be there then.
func (n *node[V]) remove(filter string, v V) (removed bool) {
	if filter == "#" {
		return drop(&n.below, v)
	}
	first := firstLevel(filter)
	c := n.child(first)
	if c == nil || commonLevels(c.path, filter) < len(c.path) {
		return false
	}
	if len(filter) == len(c.path) {
		removed = drop(&c.here, v)
	} else {
		removed = c.remove(filter[len(c.path)+1:], v)
	}
	if removed && c.here == nil && c.below == nil {
		switch only, children := c.only(); {
		case children == 0:
			n.dropChild(first)
		case children == 1: // it takes the place of c
			only.path = c.path + "/" + only.path
			n.put(only)
		}
	}
	return removed
}

// only is the only child, if there is one.
func (n *node[V]) only() (only *node[V], children int) {
	children = len(n.children)
	if n.plus != nil {
		return n.plus, children + 1
	}
	for _, only = range n.children {
		break
	}
	return only, children
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

// matching looks for the filters that match a name.
type matching[V comparable] struct {
	out   []V
	nodes int // that were compared
}

func (t *wildTrie[V]) match(name []byte, out []V) (matches []V, nodes int) {
	if t.count.Load() == 0 {
		return out, 0
	}
	m := matching[V]{out: out}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if isSystem(name) { // its first level matches only itself [MQTT-4.7.2-1]
		m.literal(&t.root, name)
	} else {
		m.below(&t.root, name)
	}
	return m.out, m.nodes
}

var slash = []byte{'/'}

// below appends what is below n and matches the rest of a name, which begins at a child of n.
func (m *matching[V]) below(n *node[V], rest []byte) {
	m.out = n.below.appendTo(m.out)
	if n.plus != nil {
		m.enter(n.plus, rest)
	}
	m.literal(n, rest)
}

// literal appends what matches below the child whose first level is that of rest.
func (m *matching[V]) literal(n *node[V], rest []byte) {
	first, _, _ := bytes.Cut(rest, slash)
	if c := n.children[string(first)]; c != nil {
		m.enter(c, rest)
	}
}

// enter appends what matches at n and below, if the rest of the name begins with the levels of n.
func (m *matching[V]) enter(n *node[V], rest []byte) {
	m.nodes++
	used, is := n.begins(rest)
	switch {
	case !is:
	case used < len(rest):
		m.below(n, rest[used+1:])
	default:
		m.out = n.here.appendTo(m.out)
		m.out = n.below.appendTo(m.out)
	}
}

// begins says whether a name begins with levels that match those of n, and how long they are.
func (n *node[V]) begins(name []byte) (length int, is bool) {
	for path, at := n.path, 0; ; {
		literal, after, plus := strings.Cut(path, "+") // a + is a level by itself
		end := at + len(literal)
		if len(name) < end || string(name[at:end]) != literal {
			return 0, false
		}
		if !plus {
			return end, len(name) == end || name[end] == '/'
		}
		if level := bytes.IndexByte(name[end:], '/'); level >= 0 {
			end += level
		} else {
			end = len(name)
		}
		switch {
		case after == "":
			return end, true
		case end == len(name):
			return 0, false
		}
		path, at = after[1:], end+1
	}
}
