package engine

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// From its deadline on a key is absent; its DELETE follows, once, before any
// later change's event (protocol, section 6, Expiry).
func TestExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a, b := w.client("a"), w.client("b")
	b.wait("WATCH k")
	a.wait("SET k v PX=100")
	w.settle()
	w.log.take()

	w.clock.advance(99)
	w.e.ExpireDue()
	w.settle()
	w.expect()
	w.clock.advance(1)
	a.wait("GET k")
	w.e.ExpireDue()
	w.settle()
	w.expect("a: GET k -> nil", "b: event k deleted")
	w.e.ExpireDue()
	w.settle()
	w.expect()

	// A SET that comes before the deletion: DELETE, then SET.
	a.wait("SET k v PX=100")
	w.settle()
	w.log.take()
	w.clock.advance(100)
	a.wait("SET k w")
	w.settle()
	w.e.ExpireDue()
	w.settle()
	w.expect("a: SET k w -> OK", "b: event k deleted", "b: event k = w")
}

func TestAPlainSetRemovesTheDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	a.wait("SET k v PX=100")
	a.wait("SET k w")
	w.clock.advance(1000)
	w.e.ExpireDue()
	if got := show(a.wait("GET k")); got != "w" {
		t.Errorf("k = %s", got)
	}
	if n := w.deadlines("k"); n != 0 {
		t.Errorf("%d deadlines are left", n)
	}
}

func TestARenewedLeaseIsOneDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	for range 20 {
		a.wait("SET k v PX=100")
		w.clock.advance(50)
		w.e.ExpireDue()
	}
	if got := show(a.wait("GET k")); got != "v" {
		t.Errorf("k = %s", got)
	}
	if n := w.deadlines("k"); n != 1 {
		t.Errorf("%d deadlines, want 1", n)
	}
	a.wait("DEL k")
	if n := w.deadlines("k"); n != 0 {
		t.Errorf("%d deadlines after DEL", n)
	}
}

func TestDeadlinesDoNotFollowStepsOfTheWallClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	a.wait("SET k v PX=10000")
	for _, step := range []int64{-3_600_000, 7_200_000} {
		w.clock.wallMs.Add(step)
		w.e.ExpireDue()
		if got := show(a.wait("GET k")); got != "v" {
			t.Errorf("after a step by %d ms: %s", step, got)
		}
	}
	// A deadline that is set after a step survives a restart by its length.
	a.wait("SET l v PX=10000")
	w.clock.advance(4_000)
	w.restart()
	a = w.client("a")
	if got := show(a.wait("GET l")); got != "v" {
		t.Errorf("after the restart: %s", got)
	}
	w.clock.advance(6_000)
	if got := show(a.wait("GET l")); got != "nil" {
		t.Errorf("after its time: %s", got)
	}
}

// A server that starts with its clock an hour behind, and is set right, holds no lease
// longer for that; a step back later, or to and fro, changes nothing any more.
func TestDeadlinesFromDiskFollowTheWallClockForward(t *testing.T) {
	t.Parallel()
	const hour = 3_600_000
	w := newWorld(t, Options{})
	a := w.client("a")
	a.wait("SET lease v PX=60000")
	a.wait("SET long v PX=7200000")
	a.wait("SET renewed v PX=60000")
	w.stop()
	w.clock.advance(50_000)
	w.clock.wallMs.Add(-hour)
	w.start()
	a = w.client("a")
	a.wait("SET renewed v PX=60000") // in this run
	a.wait("SET new v PX=60000")
	w.clock.advance(5_000)

	w.clock.wallMs.Add(hour) // 55 s after the lease was taken
	w.e.FollowClock()
	w.e.ExpireDue()
	for _, key := range []string{"lease", "long", "renewed", "new"} {
		if got := show(a.wait("GET " + key)); got != "v" {
			t.Errorf("%s in its time: %s", key, got)
		}
	}
	for _, step := range []int64{-hour, hour, -3 * hour} {
		w.clock.wallMs.Add(step)
		w.e.FollowClock()
	}
	w.clock.advance(5_000)
	w.e.ExpireDue()
	for key, want := range map[string]string{"lease": "nil", "long": "v", "renewed": "v", "new": "v"} {
		if got := show(a.wait("GET " + key)); got != want {
			t.Errorf("%s a minute after the lease was taken: %s, want %s", key, got, want)
		}
	}
	w.clock.advance(50_000)
	w.e.ExpireDue()
	for key, want := range map[string]string{"long": "v", "renewed": "nil", "new": "nil"} {
		if got := show(a.wait("GET " + key)); got != want {
			t.Errorf("%s a minute later: %s, want %s", key, got, want)
		}
	}
}

// What was set while the clock was behind has its time after a restart as well.
func TestDeadlinesSetBeforeTheClockWasRightSurviveARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	a.wait("SET k v PX=60000")
	w.clock.wallMs.Add(3_600_000)
	w.e.FollowClock()
	w.clock.advance(50_000)
	w.restart()
	if got := show(w.client("a").wait("GET k")); got != "v" {
		t.Errorf("after 50 s: %s", got)
	}
	w.clock.advance(10_000)
	if got := show(w.client("a").wait("GET k")); got != "nil" {
		t.Errorf("after 60 s: %s", got)
	}
}

// Versions never go back, whatever the wall clock does, nor over a restart.
func TestVersionsRiseThroughStepsOfTheWallClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	last := w.e.Stats().Last
	for _, step := range []int64{0, -3_600_000, 7_200_000, -10_000, 1} {
		w.clock.wallMs.Add(step)
		w.e.FollowClock()
		w.client("a").wait("SET k v")
		if now := w.e.Stats().Last; now.Compare(last) <= 0 {
			t.Errorf("after a step by %d ms: %v, and before %v", step, now, last)
		}
		last = w.e.Stats().Last
		w.restart()
	}
}

func TestWhatRanOutWhileDownIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	a.wait("SET k v PX=100")
	a.wait("SET l v PX=9000000000000000000")
	last := w.e.Stats().Last
	w.stop()
	w.clock.wallMs.Add(100)
	w.start()
	w.settle()
	if s := w.e.Stats(); s.Keys != 1 || w.records() != 1 || s.Last.Compare(last) <= 0 {
		t.Errorf("%+v, %d records", s, w.records())
	}
	w.clock.wallMs.Add(-100) // it is gone on disk too
	w.crash()
	if got := show(w.client("a").wait("GET k")); got != "nil" {
		t.Errorf("k = %s", got)
	}
	if got := show(w.client("a").wait("GET l")); got != "v" {
		t.Errorf("l = %s", got)
	}
}

func TestManyExpireAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	const n = 20_000 // more per shard than expire under one lock
	for i := range n {
		a.do(fmt.Sprintf("SET k%d v PX=%d", i, 1+i%50))
	}
	w.clock.advance(50)
	w.e.ExpireDue()
	w.settle()
	if s := w.e.Stats(); s.Keys != 0 || s.Bytes != 0 || w.records() != 0 {
		t.Errorf("%+v, %d records", s, w.records())
	}
}

// The engine's own loop, on the machine's clock: an earlier deadline wakes it
// from its sleep for a later one.
func TestTheLoopExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.o.Clock, w.o.Journal, w.o.longestSleep = nil, w.j, time.Hour
	e, err := Open(w.o)
	if err != nil {
		t.Fatal(err)
	}
	w.e = e
	events := &countingSink{deleted: make(chan string, 2)}
	s := w.open(Origin{Sink: events})
	for _, key := range []string{"late", "soon", "then"} {
		w.run(s, "WATCH "+key, nil)
	}
	asleepFor := func(deadlineMs int64) {
		for e.expiry.wakeMs.Load() != deadlineMs {
			runtime.Gosched()
		}
	}
	asleepFor(table.Never)
	<-w.run(s, "SET late v PX=3600000", nil)
	asleepFor(e.nextDeadline())
	for _, key := range []string{"soon", "then"} {
		at := time.Now()
		<-w.run(s, "SET "+key+" v PX=20", nil)
		if got := <-events.deleted; got != key {
			t.Errorf("%s has expired, want %s", got, key)
		}
		if took := time.Since(at); took < 19*time.Millisecond {
			t.Errorf("%s expired after %v, want 20 ms", key, took)
		}
	}
}

// countingSink hears of deletions only.
type countingSink struct{ deleted chan string }

func (s *countingSink) Event(e *statestore.Event) {
	if e.Kind == statestore.KeyDeleted {
		s.deleted <- string(e.Key)
	}
}

func (s *countingSink) Lost() {}

// Where very many keys expire at once, those that are watched are deleted before most
// of the others, so that their watchers hear of it in time.
func TestWatchedKeysExpireFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	const keys, watched = 4 * shardCount * expireAtOnce, 100
	for i := range keys {
		a.do(fmt.Sprintf("SET k%d v PX=100", i))
	}
	var last statestore.Event
	b := w.open(Origin{ID: "b", Sink: sinkFunc(func(e *statestore.Event) { last = *e })})
	for i := range watched {
		a.do(fmt.Sprintf("SET watched%d v PX=101", i)) // due after all the others
		c := &answer{c: a, label: "WATCH", done: make(chan struct{})}
		b.run(parse(t, fmt.Sprintf("WATCH watched%d", i), 0), c)
	}
	w.settle()
	w.clock.advance(200)
	before := w.e.Stats().Last
	w.e.ExpireDue()
	w.settle()
	if n := w.e.Stats().Keys; n != 0 {
		t.Fatalf("%d keys are left", n)
	}
	// The clock stands still, so versions count the deletions.
	if last.Version.Wall <= before.Wall || last.Version.Counter > shardCount*expireAtOnce+watched {
		t.Errorf("the last watched key of %d was deletion %d of %d", watched, last.Version.Counter, keys+watched)
	}
}

type sinkFunc func(*statestore.Event)

func (f sinkFunc) Event(e *statestore.Event) { f(e) }
func (f sinkFunc) Lost()                     {}
