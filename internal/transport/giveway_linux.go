package transport

import (
	"os"
	"runtime"
	"syscall"
)

// way is what a flusher needs for giving way to others. It belongs to one
// goroutine. End it with close.
type way struct {
	out, in *os.File        // a pipe to itself
	raw     syscall.RawConn // of out; nil: no pipe could be had
	arrived func(fd uintptr) bool
	octet   [1]byte
	sent    bool
}

func newWay() *way {
	w := &way{}
	out, in, err := os.Pipe()
	if err != nil {
		return w
	}
	w.out, w.in = out, in
	if raw, err := out.SyscallConn(); err == nil {
		w.raw, w.arrived = raw, w.receive
	}
	return w
}

// give lets those pass who wait for a processor.
//
// First the goroutines of this process whose sockets can be read. runtime.Gosched
// alone wouldn't: Go's scheduler asks the network poller only when it has nothing
// else to run, or after 10 ms, and the flusher itself would be that something. So
// the flusher waits for the poller as well, for a byte that it sends to itself.
// The poller tells of what can be read in the order in which it came, a hundred
// or so at a time, hence of the byte together with or after everybody who was
// there before it; those can run now, and Gosched lets them.
//
// Then the other threads of the machine. The kernel would leave the processor to
// this one for milliseconds, as it doesn't know that nobody waits for the end of
// this work. It returns at once if no other thread can run.
func (w *way) give() {
	if w.raw != nil {
		_ = w.raw.Read(w.arrived)
	}
	runtime.Gosched()
	// By Syscall: while this thread stands back, another may run goroutines.
	_, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
}

// receive is called by RawConn.Read: at once, when it sends the byte and has to
// wait, and when the byte has come.
func (w *way) receive(fd uintptr) bool {
	if !w.sent {
		_, err := w.in.Write(w.octet[:])
		w.sent = err == nil
		return !w.sent
	}
	_, err := syscall.Read(int(fd), w.octet[:])
	w.sent = err == syscall.EAGAIN || err == syscall.EINTR
	return !w.sent
}

func (w *way) close() {
	if w.out != nil {
		_ = w.out.Close()
		_ = w.in.Close()
	}
}
