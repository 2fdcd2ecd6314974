// Package process starts the processes of a run, reads their clocks and their memory, and
// ends them.
package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a server under test. It is started and ended by the laboratory, by
// its process ID, and dies with it.
type Process struct {
	cmd    *exec.Cmd
	log    string        // path of what it prints
	exited chan struct{} // closed once it has ended
}

// Start starts argv, whose output goes to a file name.log in dir, and waits for
// a line that contains ready. It returns the address that follows "listening
// on", if there is one, and every line read on the way.
func Start(ctx context.Context, dir, name, ready string, argv ...string) (*Process, []string, error) {
	p := &Process{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	f, err := os.Create(p.log)
	if err != nil {
		return nil, nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	p.cmd.Dir = dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, err
	}
	w.Close()
	lines := make(chan string, 1)
	go func() {
		defer f.Close()
		defer r.Close()
		defer close(lines)
		s := bufio.NewScanner(r)
		found := ready == ""
		for s.Scan() {
			fmt.Fprintln(f, s.Text())
			if !found {
				lines <- s.Text()
				found = strings.Contains(s.Text(), ready)
			}
		}
		io.Copy(f, r)
	}()
	go func() { p.cmd.Wait(); close(p.exited) }()
	if ready == "" {
		return p, nil, nil
	}
	var seen []string
	timeout := time.After(60 * time.Second)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				p.Stop()
				return nil, nil, fmt.Errorf("%s ended: %s", name, strings.Join(seen, "; "))
			}
			seen = append(seen, line)
			if strings.Contains(line, ready) {
				return p, seen, nil
			}
		case <-timeout:
			p.Stop()
			return nil, nil, fmt.Errorf("%s isn't ready after 60 s", name)
		}
	}
}

// AddressIn finds "listening on HOST:PORT" in what a server printed.
func AddressIn(lines []string) string { return AddressAfter(lines, "listening on ") }

// AddressAfter finds what follows prefix in what a server printed.
func AddressAfter(lines []string, prefix string) string {
	for _, l := range lines {
		if _, rest, ok := strings.Cut(l, prefix); ok {
			return strings.Trim(strings.Fields(rest)[0], `"`) // of a line of a log
		}
	}
	return ""
}

// FreePort is a port that was free a moment ago, for servers that can't say
// which one they took.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// AwaitPort waits until a server accepts at addr.
func AwaitPort(addr string) error {
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var c net.Conn
		if c, err = net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
	}
	return err
}

// Stop ends the process: politely, and after 20 s by force.
func (p *Process) Stop() {
	p.End(syscall.SIGTERM)
}

// End signals the process to end, and kills it after 20 s.
func (p *Process) End(sig syscall.Signal) {
	p.cmd.Process.Signal(sig)
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		p.cmd.Process.Kill()
		<-p.exited
	}
}

// proc reads a file of the process in /proc.
func (p *Process) proc(file string) []byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, file))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return b
}

// cpu is the time that the process has spent on a processor, in user and kernel
// mode together. Its clock counts nanoseconds (clock_getcpuclockid(3)); the times in
// /proc/PID/stat have a resolution of 10 ms.
func (p *Process) cpu() time.Duration {
	const scheduler = 2 // CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(^int32(p.cmd.Process.Pid)<<3|scheduler, &t); err != nil {
		return 0 // it has ended
	}
	return time.Duration(t.Nano())
}

// memory gives a line of /proc/PID/status in bytes: VmRSS, VmHWM.
func (p *Process) memory(line string) int64 {
	for l := range bytes.Lines(p.proc("status")) {
		if rest, ok := bytes.CutPrefix(l, []byte(line+":")); ok {
			kb, _ := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// Group are those that do one server's work together.
type Group []*Process

// CPU is the sum of their Process.CPU.
func (ps Group) CPU() (sum time.Duration) {
	for _, p := range ps {
		sum += p.cpu()
	}
	return sum
}

// Memory is the sum of their Process.Memory.
func (ps Group) Memory(line string) (sum int64) {
	for _, p := range ps {
		sum += p.memory(line)
	}
	return sum
}

// Stop ends them.
func (ps Group) Stop() {
	var all sync.WaitGroup
	for _, p := range ps {
		all.Go(p.Stop)
	}
	all.Wait()
}

// Monotonic is a clock that all processes of the machine share, in ns.
func Monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has it
	}
	return t.Nano()
}

// FirstLine is the first line of what a program has printed.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
