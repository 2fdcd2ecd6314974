package backlog

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
)

// Full is called once when as many messages are open as the server sends, and Over once when
// half of them are left; then both can come again.
func TestFullAndOver(t *testing.T) {
	t.Parallel()
	full, over := 0, 0
	b := Backlog{Full: func() { full++ }, Over: func() { over++ }}
	want := func(when string, wantFull, wantOver int) {
		t.Helper()
		if full != wantFull || over != wantOver {
			t.Errorf("%s: Full %d times, Over %d; want %d and %d", when, full, over, wantFull, wantOver)
		}
	}
	var open []*Entry
	add := func(n int) {
		for range n {
			open = append(open, b.Add(client.Delivery{}, 1))
		}
	}
	acknowledge := func(n int) {
		for range n {
			open[0].Ack()
			open = open[1:]
		}
	}
	for round := range 2 {
		add(Most - 1 - len(open))
		want("one below", round, round)
		add(1)
		want("at the bound", round+1, round)
		add(1)
		want("one above", round+1, round)
		acknowledge(Most - Most/2)
		want("one more than half", round+1, round)
		acknowledge(1)
		want("half", round+1, round+1)
	}
}

// A message for several handlers is acknowledged, and counts, until the last of them is done.
func TestTheLastHandlerAcknowledges(t *testing.T) {
	t.Parallel()
	acknowledged := 0
	var b Backlog
	e := b.Add(client.NewDelivery(client.Message{}, false, func() { acknowledged++ }), 3)
	for range 2 {
		e.Ack()
	}
	if acknowledged != 0 || b.open != 1 {
		t.Errorf("before the last: acknowledged %d times, %d open", acknowledged, b.open)
	}
	e.Ack()
	if acknowledged != 1 || b.open != 0 {
		t.Errorf("after the last: acknowledged %d times, %d open", acknowledged, b.open)
	}
}

// Many goroutines add and acknowledge; afterwards Over was called as often as Full.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	var full, over atomic.Int64
	b := Backlog{Full: func() { full.Add(1) }, Over: func() { over.Add(1) }}
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			var open []*Entry
			for range Most {
				open = append(open, b.Add(client.Delivery{}, 1))
			}
			for _, e := range open {
				e.Ack()
			}
		})
	}
	running.Wait()
	if full.Load() == 0 || full.Load() != over.Load() || b.open != 0 {
		t.Errorf("Full %d times, Over %d, %d are open", full.Load(), over.Load(), b.open)
	}
}
