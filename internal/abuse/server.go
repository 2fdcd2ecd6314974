package abuse

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// server is one run of the program, in a process of its own.
type server struct {
	*process.Process
	addr      []string // of MQTT over TCP: on the loopback network, and outside of it if Isolated
	webSocket []string
	tls       []string // likewise, if it negotiates
	proxy     []string // likewise
	control   string   // path of the control socket
}

const addresses = `((?:[\d.]+:\d+ ?)+)`

var (
	listens          = regexp.MustCompile(`holdfast listening on ` + addresses)
	listensWebSocket = regexp.MustCompile(`holdfast websocket on ` + addresses)
	negotiates       = regexp.MustCompile(`holdfast listening on [^"]*? ((?:mqtts://[\d.]+:\d+ )+)` + addresses)
)

// startServer runs the program on a new directory below dir. descriptors, if not 0,
// is its limit of open files; negotiate says that it has listeners over TLS, and behind a
// balancer.
func startServer(binary, dir string, descriptors int, negotiate bool, flags []string) (*server, error) {
	data := filepath.Join(dir, "data")
	args := append([]string{binary, "serve", "--listen", "127.0.0.1:0", "--ws", "127.0.0.1:0", "--data", data}, flags...)
	if Isolated() {
		args = append(args, "--listen", outside.String()+":0", "--ws", outside.String()+":0", "--allow-anonymous")
	}
	if negotiate {
		hosts := []string{loopback.String()}
		if Isolated() {
			hosts = append(hosts, outside.String())
		}
		file, err := negotiating(binary, dir, hosts)
		if err != nil {
			return nil, err
		}
		args = append(args, "--config", file)
	}
	if descriptors > 0 {
		args = append([]string{"/bin/sh", "-c", `ulimit -n "$0" && exec "$@"`, strconv.Itoa(descriptors)}, args...)
	}
	p, err := process.Start(exec.Command(args[0], args[1:]...), listens)
	if err != nil {
		return nil, err
	}
	if err := p.AwaitReady(); err != nil {
		return nil, err
	}
	s := &server{Process: p, control: filepath.Join(data, "holdfast.sock")}
	s.addr = strings.Fields(listens.FindStringSubmatch(p.Output())[1])
	s.webSocket = strings.Fields(listensWebSocket.FindStringSubmatch(p.Output())[1])
	if negotiate {
		found := negotiates.FindStringSubmatch(p.Output())
		if found == nil {
			s.Kill()
			return nil, fmt.Errorf("the server does not say where it negotiates:\n%s", p.Output())
		}
		s.tls = strings.Fields(strings.ReplaceAll(found[1], "mqtts://", ""))
		s.proxy = strings.Fields(found[2])
	}
	return s, nil
}

// resident is the memory of the process in bytes, as Linux has it; 0 once it ended.
func (s *server) resident() int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.ID()))
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
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.ID()))
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
