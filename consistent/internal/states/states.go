// Package states keeps the states of keys at hand, as far as they have room: what the store held
// when it was last heard of. Whether it still does, only a condition of a transaction tells.
package states

import (
	"container/list"
	"sync"

	"github.com/holdfast-mqtt/holdfast/consistent/internal/decoded"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// State is what a key holds.
type State struct {
	Value   []byte        // nil: there is no such key
	Version hlc.Timestamp // zero: there is no such key
	Decoded decoded.Value // what Value encodes; none: it is to be decoded
}

// entryBytes is what an entry takes beside its key and value, about.
const entryBytes = 200

// Cache holds states up to a number of bytes; beyond it the one that was used least recently
// goes. It is safe for concurrent use.
type Cache struct {
	most int64

	mu    sync.Mutex
	byKey map[string]*list.Element // under mu: of *entry
	order list.List                // under mu: the one that was used last is in front
	bytes int64                    // under mu
}

type entry struct {
	key   string
	state State
}

// New makes a cache of up to most bytes; 0: it holds nothing.
func New(most int64) *Cache { return &Cache{most: most, byKey: make(map[string]*list.Element)} }

func (e *entry) bytes() int64 {
	return int64(len(e.key)) + int64(len(e.state.Value)) + e.state.Decoded.Bytes + entryBytes
}

// Get returns the state of a key, if it is at hand. It must not be changed.
func (c *Cache) Get(key string) (s State, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[key]
	if at == nil {
		return s, false
	}
	c.order.MoveToFront(at)
	return at.Value.(*entry).state, true
}

// Put keeps the state of a key, and returns how many others had to go. A state that has no room
// by itself is not kept.
func (c *Cache) Put(key string, s State) (evicted int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[key]
	e := &entry{key, s}
	if at != nil {
		e = at.Value.(*entry)
		c.bytes -= e.bytes()
		e.state = s
	}
	if c.bytes += e.bytes(); e.bytes() > c.most {
		c.remove(at)
		if at == nil {
			c.bytes -= e.bytes()
		}
		return 0
	}
	if at != nil {
		c.order.MoveToFront(at)
	} else {
		c.byKey[key] = c.order.PushFront(e)
	}
	for c.bytes > c.most {
		c.remove(c.order.Back())
		evicted++
	}
	return evicted
}

// Drop forgets the state of a key.
func (c *Cache) Drop(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(c.byKey[key])
}

// remove removes an entry; nil is none. The caller holds mu.
func (c *Cache) remove(at *list.Element) {
	if at == nil {
		return
	}
	e := c.order.Remove(at).(*entry)
	delete(c.byKey, e.key)
	c.bytes -= e.bytes()
}
