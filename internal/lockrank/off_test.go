//go:build !lockrank

package lockrank

import (
	"sync"
	"testing"
)

// Without the tag there is nothing but the mutexes of package sync.
var (
	_ *sync.Mutex   = new(Mutex[Session])
	_ *sync.RWMutex = new(RWMutex[Names])
)

func TestEachPlaceIsInTheOrderOnce(t *testing.T) {
	t.Parallel()
	seen := map[any]string{}
	for _, e := range order {
		if other, twice := seen[e.place]; twice {
			t.Errorf("%s and %s have the same place", e.name, other)
		}
		seen[e.place] = e.name
	}
}
