package main

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

// process is a server under test. It is started and ended by the laboratory, by
// its process ID, and dies with it.
type process struct {
	cmd    *exec.Cmd
	log    string        // path of what it prints
	exited chan struct{} // closed once it has ended
}

// start starts argv, whose output goes to a file name.log in dir, and waits for
// a line that contains ready. It returns the address that follows "listening
// on", if there is one, and every line read on the way.
func start(ctx context.Context, dir, name, ready string, argv ...string) (*process, []string, error) {
	p := &process{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
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
				p.stop()
				return nil, nil, fmt.Errorf("%s ended: %s", name, strings.Join(seen, "; "))
			}
			seen = append(seen, line)
			if strings.Contains(line, ready) {
				return p, seen, nil
			}
		case <-timeout:
			p.stop()
			return nil, nil, fmt.Errorf("%s isn't ready after 60 s", name)
		}
	}
}

// addressIn finds "listening on HOST:PORT" in what a server printed.
func addressIn(lines []string) string { return addressAfter(lines, "listening on ") }

// addressAfter finds what follows prefix in what a server printed.
func addressAfter(lines []string, prefix string) string {
	for _, l := range lines {
		if _, rest, ok := strings.Cut(l, prefix); ok {
			return strings.Trim(strings.Fields(rest)[0], `"`) // of a line of a log
		}
	}
	return ""
}

// freePort is a port that was free a moment ago, for servers that can't say
// which one they took.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// awaitPort waits until a server accepts at addr.
func awaitPort(addr string) error {
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var c net.Conn
		if c, err = net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
	}
	return err
}

// stop ends the process: politely, and after 20 s by force.
func (p *process) stop() {
	p.end(syscall.SIGTERM)
}

func (p *process) end(sig syscall.Signal) {
	p.cmd.Process.Signal(sig)
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		p.cmd.Process.Kill()
		<-p.exited
	}
}

// proc reads a file of the process in /proc.
func (p *process) proc(file string) []byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, file))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return b
}

// cpu is the time that the process has spent on a processor, in user and kernel
// mode together. Its clock counts nanoseconds (clock_getcpuclockid(3)); the times in
// /proc/PID/stat have a resolution of 10 ms.
func (p *process) cpu() time.Duration {
	const scheduler = 2 // CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(^int32(p.cmd.Process.Pid)<<3|scheduler, &t); err != nil {
		return 0 // it has ended
	}
	return time.Duration(t.Nano())
}

// memory gives a line of /proc/PID/status in bytes: VmRSS, VmHWM.
func (p *process) memory(line string) int64 {
	for l := range bytes.Lines(p.proc("status")) {
		if rest, ok := bytes.CutPrefix(l, []byte(line+":")); ok {
			kb, _ := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// processes are those that do one server's work together.
type processes []*process

func (ps processes) cpu() (sum time.Duration) {
	for _, p := range ps {
		sum += p.cpu()
	}
	return sum
}

func (ps processes) memory(line string) (sum int64) {
	for _, p := range ps {
		sum += p.memory(line)
	}
	return sum
}

func (ps processes) stop() {
	var all sync.WaitGroup
	for _, p := range ps {
		all.Go(p.stop)
	}
	all.Wait()
}
