package process

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Processors are some of the machine's; nil: all that this process may use.
type Processors *unix.CPUSet

// Halves divides the processors that this process may use. ok is false if it may use only
// one.
func Halves() (one, other Processors, ok bool) {
	var all, a, b unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() < 2 {
		return nil, nil, false
	}
	for n, half := 0, all.Count()/2; b.Count() < all.Count()-half; n++ {
		switch {
		case !all.IsSet(n):
		case a.Count() < half:
			a.Set(n)
		default:
			b.Set(n)
		}
	}
	return &a, &b, true
}

// On has start start processes that use only these processors.
func On(p Processors, start func() error) error {
	if p == nil {
		return start()
	}
	runtime.LockOSThread() // a process inherits the processors of the thread that starts it
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := errors.Join(unix.SchedGetaffinity(0, &before), unix.SchedSetaffinity(0, p)); err != nil {
		return fmt.Errorf("the processors of a process: %w", err)
	}
	err := start()
	return errors.Join(err, unix.SchedSetaffinity(0, &before))
}

// GoFirst gives each thread of this process, and with that those that it will have, a
// real-time priority: they preempt what else runs on their processor. Without the privilege for that, nothing changes.
func GoFirst() error {
	for range 2 { // a thread may begin while the others are looked at
		threads, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			return err
		}
		for _, path := range threads {
			id, err := strconv.Atoi(filepath.Base(path))
			if err != nil {
				return err
			}
			switch err := unix.SchedSetAttr(id, realTime, 0); err {
			case nil, unix.ESRCH:
			case unix.EPERM:
				return nil
			default:
				return fmt.Errorf("a real-time priority: %w", err)
			}
		}
	}
	return nil
}

var realTime = &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
