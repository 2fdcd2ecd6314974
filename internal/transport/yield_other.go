//go:build !linux

package transport

import (
	"runtime"
	"time"
)

// sleepThread lets other goroutines run. A shorter sleep than the system's clock ticks
// would take a tick.
func sleepThread(time.Duration) { runtime.Gosched() }

// yielder lets other goroutines run before its owner continues.
type yielder struct{}

func newYielder() *yielder { return &yielder{} }

// yield lets runnable goroutines run first.
func (*yielder) yield() { runtime.Gosched() }

func (*yielder) close() {}
