package greedy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
)

// floodClients are the greedy clients, a process of their own. It connects nothing before
// it is told to begin, and floods the server until its input is closed; then it writes how
// many bytes its clients have sent and received.
//
// On a network each of them has a machine of its own. Here they share the processors with
// the server and with those whose waits are measured. Yielding clients have the lowest
// priority that Linux has, SCHED_IDLE: they get only the time that no other process wants.
// What the flood sends then is what the server makes time for.
type floodClients struct{ *process.Helper }

const (
	Flag         = "flood-of"
	WebFlag      = "flood-websocket"
	YieldingFlag = "flood-yields"
)

func startFlood(t *servers.Target, g *greedy, yielding bool) (*floodClients, error) {
	p, err := process.StartHelper("-"+Flag, t.Addr, "-"+WebFlag, t.WebSocket, "-flood", g.what, fmt.Sprintf("-%s=%v", YieldingFlag, yielding))
	if err != nil {
		return nil, fmt.Errorf("the clients of the flood: %w", err)
	}
	return &floodClients{p}, nil
}

// begin has the clients connect and send.
func (f *floodClients) begin() { io.WriteString(f.Input, process.Ready) }

// stop ends the process, and gives how many bytes its clients sent and received.
func (f *floodClients) stop() (bytes int64, err error) {
	f.Input.Close()
	err = binary.Read(f.Output, binary.NativeEndian, &bytes)
	if err := errors.Join(err, f.Cmd.Wait()); err != nil {
		return 0, fmt.Errorf("the clients of the flood: %w", err)
	}
	return bytes, nil
}

// BeFlood is what the process does.
func BeFlood(t *servers.Target, what string, yielding bool) error {
	if yielding {
		if err := yieldProcessors(); err != nil {
			return err
		}
	}
	var g *greedy
	for i := range greedies {
		if greedies[i].what == what {
			g = &greedies[i]
		}
	}
	if g == nil {
		return fmt.Errorf("no flood is named %q", what)
	}
	if _, err := io.WriteString(os.Stdout, process.Ready); err != nil {
		return err
	}
	input := bufio.NewReader(os.Stdin)
	var count atomic.Int64
	if _, err := input.ReadString('\n'); err != nil { // ended before it began
		return binary.Write(os.Stdout, binary.NativeEndian, count.Load())
	}
	stop := make(chan struct{})
	failures := make([]error, g.clients)
	var floods sync.WaitGroup
	for i := range g.clients {
		floods.Go(func() { failures[i] = g.flood(t, i, stop, &count) })
	}
	io.Copy(io.Discard, input)
	total := count.Load()
	close(stop)
	floods.Wait()
	return errors.Join(append(failures, binary.Write(os.Stdout, binary.NativeEndian, total))...)
}

// yieldProcessors gives each thread of the process, and with that those that it will have,
// the lowest priority.
func yieldProcessors() error {
	for range 2 { // a thread may begin while the others are looked at
		threads, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			return err
		}
		for _, path := range threads {
			id, err := strconv.Atoi(filepath.Base(path))
			if err != nil {
				return err
			}
			if err := unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil && err != unix.ESRCH {
				return fmt.Errorf("the priority of the flood's clients: %w", err)
			}
		}
	}
	return nil
}
