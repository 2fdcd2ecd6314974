// Package bystanders has clients that ask a server for a little, each ms, while others give it
// much work: what they wait is what that work costs others.
package bystanders

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
)

// Clients are clients that do something else while notifications go out: a
// GET each ms on each of bystanderCount connections. They are a process of their
// own. In this one their goroutines would share a scheduler with the thread that
// reads ten thousand notifications, and what they waited for it would look like
// the server's delay.
//
// The process says ready, asks until its input is closed, and then writes when
// each request began and how long it took.
type Clients struct{ *process.Helper }

const (
	bystanderCount = 4
	Flag           = "bystanders-of"
	FirstFlag      = "bystanders-first"
)

// Request is one request of a bystander's.
type Request struct {
	At   int64 // when it began, on process.Monotonic's clock
	Took int64 // ns
}

// Start starts the process and waits until it asks. first: it gets a processor as soon as
// it wants one, whatever else runs there.
func Start(addr string, first bool) (*Clients, error) {
	p, err := process.StartHelper("-"+Flag, addr, fmt.Sprintf("-%s=%v", FirstFlag, first))
	if err != nil {
		return nil, fmt.Errorf("bystanders: %w", err)
	}
	return &Clients{p}, nil
}

// Stop ends the process and gives what it has measured.
func (b *Clients) Stop() ([]Request, error) {
	b.Input.Close()
	data, err := io.ReadAll(b.Output)
	if err := errors.Join(err, b.Cmd.Wait()); err != nil {
		return nil, fmt.Errorf("bystanders: %w", err)
	}
	all := make([]Request, len(data)/binary.Size(Request{}))
	_, err = binary.Decode(data, binary.NativeEndian, all)
	return all, err
}

// Ask is what the process does. The keys have been set.
func Ask(addr string, first bool) error {
	if first {
		if err := process.GoFirst(); err != nil {
			return err
		}
	}
	t := servers.At(addr, "")
	clients, err := load.DialAll(t, bystanderCount, client.Script{Verb: "GET", Value: strings.Repeat("v", 64), Window: 1}, load.KeyNames(100))
	if err != nil {
		return err
	}
	defer load.CloseAll(clients)
	if _, err := io.WriteString(os.Stdout, process.Ready); err != nil {
		return err
	}
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		io.Copy(io.Discard, os.Stdin)
	}()
	var wait sync.WaitGroup
	requests, failures := make([][]Request, len(clients)), make([]error, len(clients))
	for i, c := range clients {
		wait.Go(func() { requests[i], failures[i] = askOn(c, stop) })
	}
	wait.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	for _, all := range requests {
		if err := binary.Write(os.Stdout, binary.NativeEndian, all); err != nil {
			return err
		}
	}
	return nil
}

// askOn asks each ms.
func askOn(c client.Client, stop <-chan struct{}) (all []Request, err error) {
	var h latency.Histogram
	for {
		select {
		case <-stop:
			return all, nil
		case <-time.After(time.Millisecond):
		}
		at := process.Monotonic()
		if err := c.Exchange(&h); err != nil {
			return nil, err
		}
		all = append(all, Request{at, process.Monotonic() - at})
	}
}
