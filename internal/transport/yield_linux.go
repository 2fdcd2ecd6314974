package transport

import (
	"os"
	"runtime"
	"syscall"
	"time"
)

// sleepThread suspends the caller's thread, and not only its goroutine: the kernel can
// run another thread on the processor.
func sleepThread(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil)
}

// yielder lets other goroutines and threads run before its owner continues. It belongs
// to one goroutine. End it with close.
type yielder struct {
	out, in *os.File        // the two ends of a pipe
	raw     syscall.RawConn // of out; nil: the pipe could not be made
	arrived func(fd uintptr) bool
	octet   [1]byte
	sent    bool
}

func newYielder() *yielder {
	y := &yielder{}
	out, in, err := os.Pipe()
	if err != nil {
		return y
	}
	y.out, y.in = out, in
	if raw, err := out.SyscallConn(); err == nil {
		y.raw, y.arrived = raw, y.receive
	}
	return y
}

// yield returns after the goroutines whose sockets are readable now, and the threads
// that wait for this processor, have had a turn.
//
// Goroutines: runtime.Gosched alone isn't enough. Go's scheduler asks the network
// poller only when no goroutine can run, or after 10 ms, and the caller can always
// run. So the caller writes a byte to a pipe and waits until the poller reports that
// the pipe is readable. The poller reports descriptors in the order in which they
// became readable, about a hundred at a time: sockets that were readable before the
// byte was written are reported together with it or earlier. Gosched then runs their
// goroutines first.
//
// Threads: without sched_yield the kernel would let this thread run on for
// milliseconds. sched_yield returns at once if no other thread waits.
func (y *yielder) yield() {
	if y.raw != nil {
		_ = y.raw.Read(y.arrived)
	}
	runtime.Gosched()
	// Not RawSyscall: while this thread waits, another may run goroutines.
	_, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
}

// receive is called by RawConn.Read, first at once: then it writes the byte and says
// that there is nothing to read yet. It is called again when the byte has arrived.
func (y *yielder) receive(fd uintptr) bool {
	if !y.sent {
		_, err := y.in.Write(y.octet[:])
		y.sent = err == nil
		return !y.sent
	}
	_, err := syscall.Read(int(fd), y.octet[:])
	y.sent = err == syscall.EAGAIN || err == syscall.EINTR
	return !y.sent
}

func (y *yielder) close() {
	if y.out != nil {
		_ = y.out.Close()
		_ = y.in.Close()
	}
}
