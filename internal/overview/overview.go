// Package overview has what "holdfast top" asks a running server for: its figures, what is wrong,
// and the keys and sessions that take most. The server package has it answer at its socket, and
// the command shows what it is told.
package overview

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/registry"
	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
)

// MaxHeaviest is how many keys, and how many sessions, may be asked for.
const MaxHeaviest = 100

// Overview is a server at one moment.
type Overview struct {
	At       time.Time // the server's clock
	Uptime   time.Duration
	Version  string
	Unready  []string                      // why it does not serve clients; empty: it does
	Bounds   []doctor.Finding              // that fill up
	Figures  map[string]float64            // as metrics.Read gives them
	Times    map[string]histogram.Snapshot // in ns
	Keys     []Key                         // those that take most, the one that takes most first
	Sessions []registry.Info               // likewise
}

// Key is a key, and the bytes of key and value.
type Key struct {
	Key   []byte
	Bytes int64
}

// Keys keeps the heaviest of the keys that are added.
type Keys struct {
	Most int
	list []Key // the heaviest first
}

// Add adds a key, of which a copy is made if it is kept. A key that comes again counts as it came
// last.
func (k *Keys) Add(key []byte, size int64) {
	if k.Most == 0 || len(k.list) == k.Most && size <= k.list[len(k.list)-1].Bytes {
		return
	}
	k.list = slices.DeleteFunc(k.list, func(o Key) bool { return bytes.Equal(o.Key, key) })
	at, _ := slices.BinarySearchFunc(k.list, size, func(o Key, size int64) int { return cmp.Compare(size, o.Bytes) })
	if len(k.list) == k.Most {
		k.list = k.list[:k.Most-1]
	}
	k.list = slices.Insert(k.list, at, Key{slices.Clone(key), size})
}

// List gives the keys that are kept, the heaviest first.
func (k *Keys) List() []Key { return k.list }

// Sessions keeps the heaviest of the sessions that are added.
type Sessions struct {
	Most int
	list []registry.Info // the heaviest first
}

// Weight is what a session takes, in bytes: its queue, and what its socket has not taken.
func Weight(s *registry.Info) int64 {
	if s.Link == nil {
		return s.QueuedBytes
	}
	return s.QueuedBytes + int64(s.Link.Output)
}

// lighter compares two sessions by weight, then by subscriptions and client ID.
func lighter(x, y registry.Info) int {
	return cmp.Or(cmp.Compare(Weight(&y), Weight(&x)), cmp.Compare(y.Subscriptions, x.Subscriptions), cmp.Compare(x.ClientID, y.ClientID))
}

// Add adds a session.
func (s *Sessions) Add(info registry.Info) {
	at, _ := slices.BinarySearchFunc(s.list, info, lighter)
	if at == s.Most {
		return
	}
	if len(s.list) == s.Most {
		s.list = s.list[:s.Most-1]
	}
	s.list = slices.Insert(s.list, at, info)
}

// List gives the sessions that are kept, the heaviest first.
func (s *Sessions) List() []registry.Info { return s.list }
