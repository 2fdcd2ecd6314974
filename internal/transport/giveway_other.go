//go:build !linux

package transport

import "runtime"

// way is what a flusher needs for giving way to others: nothing.
type way struct{}

func newWay() *way { return &way{} }

// give lets those goroutines pass that can run.
func (*way) give() { runtime.Gosched() }

func (*way) close() {}
