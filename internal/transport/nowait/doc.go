// Package nowait reads from non-blocking descriptors, and writes to them, without a word to
// Go's scheduler.
//
// A system call that may wait is announced to the scheduler, so that other goroutines get its
// processor meanwhile. For one that never waits this costs more than the call: on a busy
// machine the scheduler gives the processor away although the call returns at once, and has
// to find another one for its goroutine.
package nowait
