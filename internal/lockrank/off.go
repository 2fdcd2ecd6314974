//go:build !lockrank

package lockrank

import "sync"

// Mutex is a sync.Mutex whose place in the order is P.
type Mutex[P any] = sync.Mutex

// RWMutex is a sync.RWMutex whose place in the order is P.
type RWMutex[P any] = sync.RWMutex
