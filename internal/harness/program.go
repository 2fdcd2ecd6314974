// Package harness is what the tests that kill programs share: starting a broker and
// waiting until it is ready, the seed of a run, its directory, and the summary of what
// was found (summary.go). It knows nothing of what a test does with the broker.
package harness

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Patience is how long anything may take before it counts as never happening,
// unless a run says otherwise.
const Patience = time.Minute

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

// Start starts the program on a data directory and an address, and does not wait.
func (p Program) Start(dir, addr string) (*process.Process, error) {
	args, err := p.Args(dir, addr)
	if err != nil {
		return nil, fmt.Errorf("command line of %s: %w", p.Name, err)
	}
	return process.Start(exec.Command(args[0], args[1:]...), p.Ready)
}
