// Package budget bounds what processors keep in the store beside their states: how many
// keys, and how many bytes they hold.
package budget

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Budget counts the keys that are there once, and again when they seem to be too many: keys
// expire, other instances store some, and people delete them. Instances of one processor
// count each for itself, so there can be as many times more as there are instances. It is
// safe for concurrent use.
type Budget struct {
	mu      sync.Mutex
	counted time.Time // under mu: when they were counted last; zero: never
	keys    int       // under mu
	bytes   int64     // under mu: of their values
}

// Bounds are what may be kept.
type Bounds struct {
	Keys  int
	Bytes int64
}

// recount is how long after a count another one may follow.
const recount = 10 * time.Second

// ErrExceeded says that there is no room.
var ErrExceeded = errors.New("there is no room")

// Reserve counts one more key of size bytes, if there is room for it. count counts what is
// in the store; Reserve holds no lock meanwhile, and returns its error.
func (b *Budget) Reserve(ctx context.Context, of Bounds, size int64, count func(context.Context) (keys int, bytes int64, err error)) error {
	b.mu.Lock()
	fits := b.keys < of.Keys && b.bytes+size <= of.Bytes
	if fits && !b.counted.IsZero() {
		b.keys++
		b.bytes += size
		b.mu.Unlock()
		return nil
	}
	recent := !b.counted.IsZero() && time.Since(b.counted) < recount
	b.mu.Unlock()
	keys, bytes, err := 0, int64(0), error(nil)
	if !recent {
		if keys, bytes, err = count(ctx); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !recent {
		b.counted, b.keys, b.bytes = time.Now(), keys, bytes
	}
	if b.keys >= of.Keys || b.bytes+size > of.Bytes {
		return fmt.Errorf("%w: there are %d with %d bytes, of %d with %d bytes", ErrExceeded, b.keys, b.bytes, of.Keys, of.Bytes)
	}
	b.keys++
	b.bytes += size
	return nil
}

// GiveBack counts one key less, which was not stored.
func (b *Budget) GiveBack(size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys--
	b.bytes -= size
}
