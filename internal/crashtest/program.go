package crashtest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// patience is how long anything may take before it counts as never happening,
// unless a run says otherwise.
const patience = 30 * time.Second

// Program is how to start a broker on a data directory and an address.
type Program struct {
	Name string
	// Args gives the command line. It may write a configuration into dir.
	Args func(dir, addr string) ([]string, error)
	// Ready matches the line of its output that says that it accepts connections.
	Ready *regexp.Regexp
}

// Holdfast is this project's broker, built at the path given.
func Holdfast(binary string, flags ...string) Program {
	return Program{
		Name: "holdfast",
		Args: func(dir, addr string) ([]string, error) {
			args := []string{binary, "serve", "--listen", addr, "--data", filepath.Join(dir, "data")}
			return append(args, flags...), nil
		},
		Ready: regexp.MustCompile(`listening on 127\.0\.0\.1:\d+`),
	}
}

// BuildHoldfast builds the program from this module's sources into dir.
func BuildHoldfast(dir string) (binary string, err error) {
	binary = filepath.Join(dir, "holdfast")
	out, err := exec.Command("go", "build", "-o", binary, "holdfast/cmd/holdfast").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the broker (run it inside the module): %w\n%s", err, out)
	}
	return binary, nil
}

// CommandLine is any other broker: {port}, {addr} and {dir} in the words of the
// command stand for where it is to listen and to keep its data.
func CommandLine(name, command, ready string) (Program, error) {
	line, err := regexp.Compile(ready)
	if err != nil {
		return Program{}, fmt.Errorf("pattern of the ready line: %w", err)
	}
	words := strings.Fields(command)
	if len(words) == 0 {
		return Program{}, fmt.Errorf("the command of %s is empty", name)
	}
	return Program{Name: name, Ready: line, Args: func(dir, addr string) ([]string, error) {
		_, port, err := net.SplitHostPort(addr)
		fill := strings.NewReplacer("{port}", port, "{addr}", addr, "{dir}", dir)
		args := make([]string, len(words))
		for i, w := range words {
			args[i] = fill.Replace(w)
		}
		return args, err
	}}, nil
}

// Mosquitto is Eclipse Mosquitto with its persistence on, saving every so many
// seconds, and no bound on its queues.
func Mosquitto(binary string, autosave int) Program {
	return Program{
		Name: fmt.Sprintf("mosquitto (autosave %d s)", autosave),
		Args: func(dir, addr string) ([]string, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			file := filepath.Join(dir, "mosquitto.conf")
			text := fmt.Sprintf("listener %s 127.0.0.1\nallow_anonymous true\nuser root\npersistence true\npersistence_location %s/\n"+
				"autosave_interval %d\nmax_queued_messages 0\nmax_queued_bytes 0\nlog_dest stderr\n", port, dir, autosave)
			return []string{binary, "-c", file}, os.WriteFile(file, []byte(text), 0o600)
		},
		Ready: regexp.MustCompile(`mosquitto version \S+ running`),
	}
}

// Process is one run of a Program.
type Process struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed when it has said that it is ready
	done  chan struct{} // closed when it has ended and been waited for
	said  tail
}

// Start starts the program on a data directory and an address, and does not wait.
func (p Program) Start(dir, addr string) (*Process, error) {
	args, err := p.Args(dir, addr)
	if err != nil {
		return nil, fmt.Errorf("command line of %s: %w", p.Name, err)
	}
	run := &Process{cmd: exec.Command(args[0], args[1:]...), ready: make(chan struct{}), done: make(chan struct{})}
	r, w := io.Pipe()
	run.cmd.Stdout, run.cmd.Stderr = w, w
	if err := run.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	go run.listen(r, p.Ready)
	go func() {
		defer close(run.done)
		_ = run.cmd.Wait() // how it ended is in what it said
		_ = w.Close()
	}()
	return run, nil
}

// listen reads the program's output until it ends.
func (run *Process) listen(r io.Reader, ready *regexp.Regexp) {
	waiting := true
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		run.said.add(line)
		if waiting && ready.MatchString(line) {
			waiting = false
			close(run.ready)
		}
		if err != nil {
			return
		}
	}
}

// AwaitReady waits until the program accepts connections.
func (run *Process) AwaitReady() error {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-run.ready:
		return nil
	case <-run.done:
		return fmt.Errorf("the broker ended before it was ready; it said:\n%s", run.said.text())
	case <-late.C:
		return fmt.Errorf("the broker is not ready after %v; it said:\n%s", patience, run.said.text())
	}
}

// Kill ends the process as no program can prepare for. It says false if the
// process had already ended by itself.
func (run *Process) Kill() (ran bool) {
	select {
	case <-run.done:
		return false
	default:
	}
	_ = run.cmd.Process.Kill()
	<-run.done
	return true
}

// tail keeps the last lines of an output.
type tail struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

const tailLines = 40

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == tailLines {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, line)
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "")
}

// FreeAddress finds a port below those that the system gives to outgoing
// connections: a client that dials while the broker is down would otherwise be
// able to take the port, or even to connect to itself. pick chooses from [0, n).
func FreeAddress(pick func(n int) int) (string, error) {
	const lowest, highest = 15_000, 32_000
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", lowest+pick(highest-lowest))
		if l, err := net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("no free port between %d and %d", lowest, highest)
}
