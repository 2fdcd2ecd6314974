package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// own is the file of the calling thread's network namespace.
const own = "/proc/thread-self/ns/net"

// mayMake says why this process can make no namespace; nil: it can.
func mayMake() error {
	f, err := makeNamespace()
	if err != nil {
		return fmt.Errorf("a network namespace needs root: %w", err)
	}
	return f.Close()
}

// makeNamespace makes a network namespace, which stays as long as the file is open.
func makeNamespace() (f *os.File, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		f, err = os.Open(own)
		return err
	})
	return f, err
}

// in calls f on a thread in a namespace, to which the sockets and processes belong that f makes on its own
// goroutine.
func in(namespace *os.File, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	})
}

// onThread calls f, which may change the namespace, on a thread that no other goroutine uses
// until it is back in its own.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an end, the thread ends with the goroutine
		before, err := os.Open(own)
		if err != nil {
			done <- err
			return
		}
		defer before.Close()
		err = f()
		back := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, os.NewSyscallError("setns", back))
	}()
	return <-done
}
