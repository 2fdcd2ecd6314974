//go:build !lockrank

package lockrank

import "sync"

// Without the tag there is nothing but the mutexes of package sync.
var (
	_ *sync.Mutex   = new(Mutex[Session])
	_ *sync.RWMutex = new(RWMutex[Names])
)
