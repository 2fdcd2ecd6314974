package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// bystanders are clients that do something else while notifications go out: a
// GET each ms on each of bystanderCount connections. They are a process of their
// own. In this one their goroutines would share a scheduler with the thread that
// reads ten thousand notifications, and what they waited for it would look like
// the server's delay.
//
// The process says ready, asks until its input is closed, and then writes when
// each request began and how long it took.
type bystanders struct{ *helper }

const (
	bystanderCount = 4
	bystandersFlag = "bystanders-of"
)

// asked is one request of a bystander's.
type asked struct {
	At   int64 // when it began, on monotonic's clock
	Took int64 // ns
}

// monotonic is a clock that all processes of the machine share, in ns.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has it
	}
	return t.Nano()
}

// startBystanders starts the process and waits until it asks.
func startBystanders(addr string) (*bystanders, error) {
	p, err := startHelper("-"+bystandersFlag, addr)
	if err != nil {
		return nil, fmt.Errorf("bystanders: %w", err)
	}
	return &bystanders{p}, nil
}

// stop ends the process and gives what it has measured.
func (b *bystanders) stop() ([]asked, error) {
	b.input.Close()
	data, err := io.ReadAll(b.output)
	if err := errors.Join(err, b.cmd.Wait()); err != nil {
		return nil, fmt.Errorf("bystanders: %w", err)
	}
	all := make([]asked, len(data)/binary.Size(asked{}))
	_, err = binary.Decode(data, binary.NativeEndian, all)
	return all, err
}

// beBystanders is what the process does. The keys have been set.
func beBystanders(addr string) error {
	t := &target{kind: kindOf(bareLoop), addr: addr}
	clients, err := t.dialAll(bystanderCount, script{verb: "GET", value: strings.Repeat("v", 64), window: 1}, keyNames(100))
	if err != nil {
		return err
	}
	defer closeAll(clients)
	if _, err := io.WriteString(os.Stdout, ready); err != nil {
		return err
	}
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		io.Copy(io.Discard, os.Stdin)
	}()
	var wait sync.WaitGroup
	requests, failures := make([][]asked, len(clients)), make([]error, len(clients))
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
func askOn(c client, stop <-chan struct{}) (all []asked, err error) {
	var h histogram
	for {
		select {
		case <-stop:
			return all, nil
		case <-time.After(time.Millisecond):
		}
		at := monotonic()
		if err := c.exchange(&h); err != nil {
			return nil, err
		}
		all = append(all, asked{at, monotonic() - at})
	}
}
