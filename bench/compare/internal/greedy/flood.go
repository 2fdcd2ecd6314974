package greedy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
)

// floodClients are the greedy clients, a process of their own. It connects nothing before
// it is told to begin, and floods the server until its input is closed; then it writes how
// many bytes its clients have sent and received.
type floodClients struct{ *process.Helper }

const (
	Flag    = "flood-of"
	WebFlag = "flood-websocket"
)

func startFlood(t *servers.Target, g *greedy) (*floodClients, error) {
	p, err := process.StartHelper("-"+Flag, t.Addr, "-"+WebFlag, t.WebSocket, "-flood", g.what)
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
func BeFlood(t *servers.Target, what string) error {
	g := named(what)
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

// named finds a flood.
func named(what string) *greedy {
	for _, g := range append([]greedy{subscribed}, greedies...) {
		if g.what == what {
			return &g
		}
	}
	return nil
}
