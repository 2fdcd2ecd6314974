package abuse

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// server is one run of the program, in a process of its own.
type server struct {
	cmd       *exec.Cmd
	addr      []string // of MQTT over TCP: on the loopback network, and outside of it if Isolated
	webSocket []string
	control   string // path of the control socket
	lines     atomic.Int64
	ended     chan struct{} // closed when the process has ended

	mu   sync.Mutex
	said []string // the last lines; guarded by mu
}

var listens = regexp.MustCompile(`holdfast (listening|websocket) on ((?:[\d.]+:\d+ ?)+)`)

// readyIn is how long a start may take.
const readyIn = 30 * time.Second

// startServer runs the program on a new directory below dir. descriptors, if not 0,
// is its limit of open files.
func startServer(binary, dir string, descriptors int, flags []string) (*server, error) {
	data := filepath.Join(dir, "data")
	args := append([]string{binary, "serve", "--listen", "127.0.0.1:0", "--ws", "127.0.0.1:0", "--data", data}, flags...)
	if Isolated() {
		args = append(args, "--listen", outside.String()+":0", "--ws", outside.String()+":0", "--allow-anonymous")
	}
	if descriptors > 0 {
		args = append([]string{"/bin/sh", "-c", `ulimit -n "$0" && exec "$@"`, strconv.Itoa(descriptors)}, args...)
	}
	s := &server{cmd: exec.Command(args[0], args[1:]...), control: filepath.Join(data, "holdfast.sock"), ended: make(chan struct{})}
	r, w := io.Pipe()
	s.cmd.Stdout, s.cmd.Stderr = w, w
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait() // how it ended is in what it said
		_ = w.Close()
	}()
	ready := make(chan struct{})
	go s.listen(r, ready)
	select {
	case <-ready:
		return s, nil
	case <-s.ended:
	case <-time.After(readyIn):
		s.kill()
	}
	return nil, fmt.Errorf("the program did not start; it said:\n%s", s.lastWords())
}

// listen reads the program's output until it ends.
func (s *server) listen(r io.Reader, ready chan struct{}) {
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		s.lines.Add(1)
		s.mu.Lock()
		if len(s.said) == keptLines {
			s.said = append(s.said[:0], s.said[1:]...)
		}
		s.said = append(s.said, line)
		s.mu.Unlock()
		if m := listens.FindStringSubmatch(line); m != nil && s.addr == nil {
			if m[1] == "websocket" {
				s.webSocket = strings.Fields(m[2])
				continue
			}
			s.addr = strings.Fields(m[2])
			close(ready)
		}
	}
}

const keptLines = 20

func (s *server) lastWords() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.said, "")
}

func (s *server) alive() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// stop asks the program to end, and kills it if it has not within limit.
func (s *server) stop(limit time.Duration) (took time.Duration, inTime bool) {
	begun := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && s.alive() {
		s.kill()
		return time.Since(begun), false
	}
	select {
	case <-s.ended:
		return time.Since(begun), true
	case <-time.After(limit):
		s.kill()
		return time.Since(begun), false
	}
}

// resident is the memory of the process in bytes, as Linux has it; 0 once it ended.
func (s *server) resident() int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		if rest, found := strings.CutPrefix(line, "VmRSS:"); found {
			kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// processor is the processor time that the process has used.
func (s *server) processor() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	// The name of the program, in parentheses, is the second field; times in
	// user and kernel mode are the 14th and 15th, in hundredths of a second.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// operate makes a request to the control socket. Any answer of HTTP will do: the
// request is for a path that does not exist.
func (s *server) operate(limit time.Duration) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.control)
	}
	client := http.Client{Timeout: limit, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	response, err := client.Get("http://holdfast/")
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	return response.Body.Close()
}
