package transport

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// testGate is a gate for 4 processors with a clock and a count of others' work
// that the test sets.
func testGate(t *testing.T) (g *Gate, others *atomic.Int64, clock *atomic.Int64) {
	others, clock = new(atomic.Int64), new(atomic.Int64)
	g = NewGate(others.Load)
	g.processors = 4
	start := time.Now()
	g.now = func() time.Time { return start.Add(time.Duration(clock.Load())) }
	t.Cleanup(g.Close)
	return g, others, clock
}

// enterOne has a goroutine enter, which is not to get a place at once, and returns
// when it waits. It calls inside once it has a place.
func enterOne(g *Gate, inside func()) {
	before := g.Waiting()
	go func() { g.Enter(); inside() }()
	for g.Waiting() == before {
		time.Sleep(10 * time.Microsecond)
	}
}

func TestAGateHasAPlaceForEachProcessorAndOneFewerWhileOthersWork(t *testing.T) {
	t.Parallel()
	g, others, clock := testGate(t)
	for range 4 {
		g.Enter()
	}
	fifth := make(chan struct{})
	enterOne(g, func() { close(fifth) })

	others.Add(1)
	left := make(chan struct{})
	go func() { g.Yield(); close(left) }() // notices the others, and one of those inside has to wait
	for g.Waiting() != 2 {
		time.Sleep(10 * time.Microsecond)
	}
	g.Leave() // three are inside, as many as may be, and so the fifth goes in for this one
	g.Leave()
	<-fifth

	clock.Add(int64(othersStay))
	g.Leave()
	<-left
	g.Leave()
	g.Leave()
	if n := g.Waiting(); n != 0 || g.inside != 0 {
		t.Fatalf("%d wait and %d are inside at the end, want none", n, g.inside)
	}
}

func TestTheLongestWaitingGoesInFirst(t *testing.T) {
	t.Parallel()
	g, _, _ := testGate(t)
	g.processors = 1
	g.Enter()
	var mu sync.Mutex
	var order []int
	var done sync.WaitGroup
	for i := range 3 {
		done.Add(1)
		enterOne(g, func() {
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			g.Leave()
			done.Done()
		})
	}
	g.Yield() // comes back behind the three
	if !slices.Equal(order, []int{0, 1, 2}) {
		t.Fatalf("the waiting went in as %v, and the one that yielded came back after %d of them", order, len(order))
	}
	g.Leave()
	done.Wait()
}

func TestYieldKeepsThePlaceThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	g, _, _ := testGate(t)
	g.Enter()
	for range 100 {
		g.Yield()
	}
	g.Leave()
	if g.inside != 0 {
		t.Fatalf("%d are inside at the end", g.inside)
	}
}

func TestFramesWithoutDataAreSlowedBeyondABurst(t *testing.T) {
	t.Parallel()
	var p idleFrames
	now := time.Now()
	for i := range idleBurst {
		if p.tooFast(now) {
			t.Fatalf("ping %d of a burst of %d is too fast", i+1, idleBurst)
		}
	}
	if p.tooFast(now); !p.tooFast(now) {
		t.Fatal("pings beyond the burst are not slowed")
	}
	for i := range 1000 {
		now = now.Add(2 * idleInterval)
		if p.tooFast(now) && i > 2 {
			t.Fatalf("a ping each %v is slowed", 2*idleInterval)
		}
	}
}
