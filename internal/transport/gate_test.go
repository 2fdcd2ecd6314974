package transport

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// testGate is a gate for 4 processors with a clock that the test sets.
func testGate(t *testing.T) (g *Gate, clock *atomic.Int64) {
	clock = new(atomic.Int64)
	g = NewGate()
	g.processors = 4
	start := time.Now()
	g.now = func() time.Time { return start.Add(time.Duration(clock.Load())) }
	t.Cleanup(g.Close)
	return g, clock
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
	g, clock := testGate(t)
	for range 4 {
		g.Enter()
	}
	fifth := make(chan struct{})
	enterOne(g, func() { close(fifth) })

	g.NoteOther()
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
	g, _ := testGate(t)
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

func TestThoseInsidePauseWhileOthersWork(t *testing.T) {
	t.Parallel()
	g, clock := testGate(t)
	clock.Store(int64(time.Minute))
	pauses := 0
	g.pause = func() { pauses++ }
	yield := func(what string, want int) {
		t.Helper()
		if g.Yield(); pauses != want {
			t.Errorf("%s: %d pauses, want %d", what, pauses, want)
		}
	}
	g.Enter()
	defer g.Leave()
	yield("no others work", 0)
	g.NoteOther()
	yield("others work", 1)
	yield("again at once", 1)
	clock.Add(int64(pauseAfter) - 1)
	yield("just before the next is due", 1)
	clock.Add(1)
	yield("when it is due", 2)
	clock.Add(int64(othersStay))
	yield("the others have gone", 2)
}

// Readers of large packets enter and leave for each read, and never yield.
func TestThoseWhoEnterPauseWhileOthersWork(t *testing.T) {
	t.Parallel()
	g, clock := testGate(t)
	clock.Store(int64(time.Minute))
	pauses := 0
	g.pause = func() { pauses++ }
	enter := func(what string, want int) {
		t.Helper()
		g.Enter()
		g.Leave()
		if pauses != want {
			t.Errorf("%s: %d pauses, want %d", what, pauses, want)
		}
	}
	enter("no others work", 0)
	g.NoteOther()
	enter("others work", 1)
	enter("again at once", 1)
	clock.Add(int64(pauseAfter))
	enter("when the next is due", 2)
	clock.Add(int64(othersStay))
	enter("the others have gone", 2)
}

// A goroutine that works outside, such as a flusher, yields only for clients that ask, and
// only beside greedy readers.
func TestThoseOutsidePassWhileOthersWork(t *testing.T) {
	t.Parallel()
	g, clock := testGate(t)
	clock.Store(int64(time.Minute))
	g.pause = func() { t.Error("a goroutine outside pauses") }
	pass := func(what string, want bool) {
		t.Helper()
		for _, y := range g.idle {
			y.close()
		}
		g.idle = nil
		g.Pass()
		if used := len(g.idle) > 0; used != want {
			t.Errorf("%s: yielded %v, want %v", what, used, want)
		}
	}
	g.Enter()
	pass("no others work", false)
	g.NoteOther()
	pass("others and a greedy reader work", true)
	clock.Add(int64(othersStay) - 1)
	pass("they may ask again", true)
	clock.Add(1)
	pass("the others have gone", false)
	g.Leave()
	g.NoteOther()
	pass("no greedy reader works", false)
	if g.inside != 0 {
		t.Errorf("%d are inside at the end", g.inside)
	}
}

// A pipe and a system call in each slice are for the case that no processor is left
// over: one greedy reader, such as a publisher to many subscribers, needn't pay for them.
func TestOnlyThoseThatTakeAllProcessorsYieldThem(t *testing.T) {
	t.Parallel()
	g, _ := testGate(t)
	for inside := 1; inside <= 4; inside++ {
		g.Enter()
		g.Yield()
		if used := len(g.idle) > 0; used != (inside == 4) {
			t.Errorf("with %d inside on 4 processors, a yielder was used: %v", inside, used)
		}
	}
	for range 4 {
		g.Leave()
	}
}

func TestYieldKeepsThePlaceIfNoneWaitsForIt(t *testing.T) {
	t.Parallel()
	g, _ := testGate(t)
	g.Enter()
	for range 100 {
		g.Yield()
	}
	g.Leave()
	if g.inside != 0 {
		t.Fatalf("%d are inside at the end", g.inside)
	}
}
