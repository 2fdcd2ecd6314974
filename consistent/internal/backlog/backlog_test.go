package backlog

import (
	"sync"
	"sync/atomic"
	"testing"
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
	var open []func()
	add := func(n int) {
		for range n {
			open = append(open, b.Add(func() {}))
		}
	}
	acknowledge := func(n int) {
		for range n {
			open[0]()
			open = open[1:]
		}
	}
	for round := range 2 {
		add(ReceiveMaximum - 1 - len(open))
		want("one below", round, round)
		add(1)
		want("at the bound", round+1, round)
		add(1)
		want("one above", round+1, round)
		acknowledge(1)
		add(1)
		want("at the bound again, before it was over", round+1, round)
		acknowledge(ReceiveMaximum/2 + 1 - 1)
		want("one more than half", round+1, round)
		acknowledge(1)
		want("half", round+1, round+1)
	}
}

// Each acknowledgement is passed on, and a repeated one counts once.
func TestAnAcknowledgementCountsOnce(t *testing.T) {
	t.Parallel()
	over, passed := 0, 0
	b := Backlog{Full: func() {}, Over: func() { over++ }}
	var acks []func()
	for range ReceiveMaximum {
		acks = append(acks, b.Add(func() { passed++ }))
	}
	for range ReceiveMaximum {
		acks[0]()
	}
	if over != 0 || passed != ReceiveMaximum {
		t.Errorf("one message, acknowledged %d times: Over %d times, %d were passed on", ReceiveMaximum, over, passed)
	}
	for _, ack := range acks[:ReceiveMaximum/2] {
		ack()
	}
	if over != 1 {
		t.Errorf("half are acknowledged: Over %d times", over)
	}
}

// Many goroutines add and acknowledge; Full and Over alternate.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	var full, over atomic.Int64
	b := Backlog{Full: func() { full.Add(1) }, Over: func() { over.Add(1) }}
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			var acks []func()
			for range ReceiveMaximum {
				acks = append(acks, b.Add(func() {}))
			}
			for _, ack := range acks {
				ack()
			}
		})
	}
	running.Wait()
	if full.Load() == 0 || full.Load() != over.Load() || b.open != 0 {
		t.Errorf("Full %d times, Over %d, %d are open", full.Load(), over.Load(), b.open)
	}
}
