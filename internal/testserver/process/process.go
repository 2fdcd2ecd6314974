// Package process builds programs and runs them for tests: it waits for the line that
// says that a program is ready, keeps the last lines of its output, stops it or kills it.
//
// internal/testserver calls it for tests, and the harnesses that kill or attack a server
// call it themselves. It knows nothing of what it runs, and is never part of the program.
package process

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Patience is how long a start or a stop may take before it counts as failed.
const Patience = time.Minute

// Holdfast is the main package of the server.
const Holdfast = "github.com/holdfast-mqtt/holdfast/cmd/holdfast"

// Build compiles a main package of this module into dir, with flags for go build.
func Build(dir, pkg string, flags ...string) (binary string, err error) {
	binary = filepath.Join(dir, filepath.Base(pkg))
	if out, err := exec.Command("go", append(append([]string{"build"}, flags...), "-o", binary, pkg)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s (run it inside the module): %w\n%s", pkg, err, out)
	}
	return binary, nil
}

// Process is one run of a program. Its methods are safe for concurrent use.
type Process struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed when a line has matched
	ended chan struct{} // closed when the process has ended and all of its output was read

	mu    sync.Mutex
	lines int      // under mu: written so far
	tail  []string // under mu: the last of them
}

// tailLines is how many lines of its output a Process keeps.
const tailLines = 1000

// Start runs a command and doesn't wait. The program is ready when a line of its output
// matches; it is never ready if ready is nil.
func Start(cmd *exec.Cmd, ready *regexp.Regexp) (*Process, error) {
	p := &Process{cmd: cmd, ready: make(chan struct{}), ended: make(chan struct{})}
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	go func() {
		_ = cmd.Wait() // the process's state says how it ended
		_ = w.Close()
	}()
	go p.read(r, ready)
	return p, nil
}

// StartTest runs one test of the running test program in a process of its own, with these
// variables added to the environment, and waits until a line of its output matches. in is its
// standard input.
func StartTest(name string, ready *regexp.Regexp, environment ...string) (p *Process, in io.WriteCloser, err error) {
	cmd := exec.Command(os.Args[0], "-test.run=^"+name+"$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), environment...)
	if in, err = cmd.StdinPipe(); err != nil {
		return nil, nil, err
	}
	if p, err = Start(cmd, ready); err != nil {
		return nil, nil, err
	}
	if err := p.AwaitReady(); err != nil {
		p.Kill()
		return nil, nil, err
	}
	return p, in, nil
}

// read reads the program's output until it has ended.
func (p *Process) read(r io.Reader, ready *regexp.Regexp) {
	defer close(p.ended)
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if line != "" {
			p.add(line)
		}
		if ready != nil && ready.MatchString(line) {
			close(p.ready)
			ready = nil
		}
		if err != nil {
			return
		}
	}
}

func (p *Process) add(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines++
	if len(p.tail) == tailLines {
		p.tail = append(p.tail[:0], p.tail[1:]...)
	}
	p.tail = append(p.tail, line)
}

// AwaitReady waits until the program is ready. It kills a program that is not within
// Patience. The error contains the program's last lines.
func (p *Process) AwaitReady() error {
	late := time.NewTimer(Patience)
	defer late.Stop()
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		return fmt.Errorf("the program ended before it was ready: %v; its output:\n%s", p.cmd.ProcessState, p.Output())
	case <-late.C:
		p.Kill()
		return fmt.Errorf("the program was not ready within %v; its output:\n%s", Patience, p.Output())
	}
}

// Output is the last lines of what the program has written to standard output and
// standard error.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.tail, "")
}

// Lines is how many lines the program has written.
func (p *Process) Lines() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines
}

// ID is the process identifier.
func (p *Process) ID() int { return p.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// State is how the process ended; call it only when it has.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Signal sends a signal, and doesn't wait for its effect.
func (p *Process) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends the process with SIGKILL, for which no program can prepare. It returns false
// if the process had already ended.
func (p *Process) Kill() (ran bool) {
	if !p.Running() {
		return false
	}
	p.Signal(os.Kill)
	<-p.ended
	return true
}

// Stop ends the process with SIGTERM and waits for it. It returns false if the process
// had to be killed because it was still there after limit.
func (p *Process) Stop(limit time.Duration) (inTime bool) {
	p.Signal(syscall.SIGTERM)
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-p.ended:
		return true
	case <-late.C:
		p.Kill()
		return false
	}
}

// FreeAddress finds a port below those that the system gives to outgoing connections and
// to listeners on port 0: otherwise they could take the port while the server is down,
// and a client that dials it could even connect to itself. pick chooses from [0, n).
//
// The port is reserved for this process.
func FreeAddress(pick func(n int) int) (string, error) {
	const lowest, highest = 15_000, 32_000
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", lowest+pick(highest-lowest))
		if Reserve(addr) {
			return addr, nil
		}
	}
	return "", fmt.Errorf("no free port between %d and %d", lowest, highest)
}

// Reserve reports whether nothing listens at an address, and no other process has reserved it.
// Then neither FreeAddress nor Reserve gives it again, in any process of this machine, until
// this one has ended or has reserved [maxReserved] others: go test runs the tests of several
// packages at the same time, and a server may start on its port long after it was chosen.
func Reserve(addr string) bool {
	reservation, err := net.ListenPacket("udp", addr) // its port is free for TCP
	if err != nil {
		return false
	}
	if !free(addr) {
		_ = reservation.Close()
		return false
	}
	reservedMu.Lock()
	defer reservedMu.Unlock()
	if len(reserved) == maxReserved {
		_ = reserved[0].Close()
		reserved = append(reserved[:0], reserved[1:]...)
	}
	reserved = append(reserved, reservation)
	return true
}

// free reports whether nothing listens at an address. On Linux no process is forked while it
// listens there itself: the child would hold a copy of the socket until it executes its
// program, and the address would be in use for that long after free has closed its own.
func free(addr string) bool {
	if runtime.GOOS == "linux" { // elsewhere package net takes this lock itself, and it does not nest
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// maxReserved bounds the descriptors that reservations take.
const maxReserved = 200

// reserved are the sockets of reservations. The system closes them when the process ends,
// however it does.
var (
	reservedMu sync.Mutex
	reserved   []net.PacketConn // under reservedMu; the oldest first
)

// UnusedAddress is FreeAddress with a choice that differs from run to run.
func UnusedAddress() (string, error) { return FreeAddress(rand.IntN) }
