package service

import (
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// At its bound of writes that wait for the disk no more times are taken; one that is durable
// makes room for another.
func TestSamplesAreBounded(t *testing.T) {
	t.Parallel()
	var s samples
	s.init()
	h := histogram.New(1)
	var waiting []journal.Waiter
	await := func(_ journal.Seq, w journal.Waiter) bool {
		waiting = append(waiting, w)
		return true
	}
	most := len(s.all)
	for range most + 1 {
		s.take(time.Now(), h, 1, await)
	}
	if len(waiting) != most || h.Read().Count != 0 {
		t.Errorf("%d wait and %d were counted, want %d and none", len(waiting), h.Read().Count, most)
	}
	waiting[3].Durable(1)
	s.take(time.Now(), h, 2, await)
	s.take(time.Now(), h, 3, await)
	if len(waiting) != most+1 || h.Read().Count != 1 {
		t.Errorf("after one is durable %d have waited and %d were counted", len(waiting), h.Read().Count)
	}
	s.take(time.Now(), h, 0, await) // an answer that waits for nothing
	if h.Read().Count != 2 {
		t.Error("an answer that waits for nothing was not counted")
	}
}

// Each reply has the outcome that the page of metrics describes.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for want, replies := range map[Outcome][]statestore.Reply{
		Done:   {{Kind: statestore.OK}, {Kind: statestore.Value}, {Kind: statestore.Count}, {Kind: statestore.Page}, {Kind: statestore.Loaded}, {Kind: statestore.Transacted, Count: statestore.Committed}, {Kind: statestore.Transacted, Count: statestore.AlreadyDone}},
		Missed: {{Kind: statestore.NotApplied}, {Kind: statestore.Nil}, {Kind: statestore.Conflict}},
		Quota:  {{Kind: statestore.Error, Fault: statestore.QuotaExceeded, Bound: statestore.MaxKeys}},
		Denied: {{Kind: statestore.Error, Fault: statestore.NotAuthorized}},
		Faulty: {{Kind: statestore.Error, Fault: statestore.Syntax}},
	} {
		for _, r := range replies {
			if got := outcomeOf(&r); got != want {
				t.Errorf("%+v: %v, want %v", r, got, want)
			}
		}
	}
}

// What counting a sampled command costs; it allocates nothing.
func BenchmarkSample(b *testing.B) {
	var s samples
	s.init()
	h := histogram.New(1000)
	b.ReportAllocs()
	for b.Loop() {
		s.take(time.Now(), h, 1, func(journal.Seq, journal.Waiter) bool { return false })
	}
}
