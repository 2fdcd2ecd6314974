package principals

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// A principal that has been silent may publish as much as in a second at once; from there on
// each publish waits for the one before it.
func TestPublishesOfASecondComeAtOnce(t *testing.T) {
	t.Parallel()
	var r Rates
	q := &access.Quota{Publishes: 10}
	now := time.Hour
	for i := range 10 {
		if wait := r.Wait(q, r.Enter(q, 100, now), 1, now); wait != 0 {
			t.Fatalf("publish %d of 10 waits %v", i+1, wait)
		}
	}
	tenth := time.Second / 10
	eleventh, twelfth := r.Enter(q, 100, now), r.Enter(q, 100, now)
	if one, two := r.Wait(q, eleventh, 1, now), r.Wait(q, twelfth, 1, now); one != tenth || two != 2*tenth {
		t.Fatalf("publishes 11 and 12 wait %v and %v, want %v and %v", one, two, tenth, 2*tenth)
	}
	if one, two := r.Wait(q, eleventh, 1, now+tenth), r.Wait(q, twelfth, 1, now+tenth); one != 0 || two != tenth {
		t.Fatalf("a tenth of a second later they wait %v and %v, want 0s and %v", one, two, tenth)
	}
	r.Return(twelfth)
	if wait := r.Wait(q, r.Enter(q, 100, now+tenth), 1, now+tenth); wait != tenth {
		t.Errorf("the publish in the place of one that was given back waits %v, want %v", wait, tenth)
	}
}

// A packet of the largest size comes through at once, however low the rate of bytes is; what
// follows waits as long as the rate says.
func TestALargePacketComesThrough(t *testing.T) {
	t.Parallel()
	var r Rates
	q := &access.Quota{PublishBytes: 1000}
	const largest = 1 << 20
	if wait := r.Wait(q, r.Enter(q, largest, 0), largest, 0); wait != 0 {
		t.Fatalf("a packet of the largest size waits %v", wait)
	}
	next := r.Enter(q, 500, 0)
	if wait := r.Wait(q, next, largest, 0); wait != time.Second/2 {
		t.Errorf("500 bytes after it wait %v, want 0.5s", wait)
	}
	if wait := r.Wait(q, next, largest, time.Second/2); wait != 0 {
		t.Errorf("after half a second they wait %v", wait)
	}
}

// Another policy applies to a packet that waits.
func TestAHigherRateLetsAWaitingPacketThrough(t *testing.T) {
	t.Parallel()
	var r Rates
	slow := &access.Quota{Publishes: 1}
	var last Ticket
	for range 61 {
		last = r.Enter(slow, 1, 0)
	}
	if wait := r.Wait(slow, last, 1, 0); wait != time.Minute {
		t.Fatalf("the last of 61 publishes waits %v, want 1m0s", wait)
	}
	for _, faster := range []*access.Quota{{Publishes: 100}, {}, {PublishBytes: 1}} {
		if wait := r.Wait(faster, last, 1, 0); wait != 0 {
			t.Errorf("with the quota %+v it waits %v", *faster, wait)
		}
	}
}

// However many packets come when, and from how many connections: in no stretch of time are
// more handled than the burst and what the rate allows.
func TestRatesAreKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(1, 1_000_000).Draw(t, "rate")
		q := &access.Quota{Publishes: rate}
		var r Rates
		now, handled := time.Duration(0), int64(0)
		var began time.Duration
		for range rapid.IntRange(1, 100).Draw(t, "packets") {
			if rapid.Bool().Draw(t, "silent") {
				now += time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "pause"))
			}
			ticket := r.Enter(q, 1, now)
			for wait := r.Wait(q, ticket, 1, now); wait > 0; wait = r.Wait(q, ticket, 1, now) {
				now += wait
			}
			handled++
			most := rate + int64((now-began+ShortestWait).Seconds()*float64(rate)) + 1
			if handled > most {
				t.Fatalf("%d packets were handled in %v at a rate of %d", handled, now-began, rate)
			}
		}
	})
}

// A principal that leaves and comes again finds its rate as it was, until all that it has
// published has passed. Of those that are gone there are at most as many records as
// connections.
func TestLeavingDoesNotRefillARate(t *testing.T) {
	t.Parallel()
	now := time.Hour
	pool := memory.NewPool(1 << 30)
	ps := New(Options{Connections: 2, Memory: pool, Now: func() time.Duration { return now }})
	q := &access.Quota{Publishes: 10}
	// publishes has a principal come, publish so many messages, and leave; it returns how long
	// the last of them would wait.
	publishes := func(name string, n int) (wait time.Duration) {
		t.Helper()
		s := ps.Arrive(nil, false)
		if _, refused := ps.Admit(s, name, q, false); refused != "" {
			t.Fatal(refused)
		}
		for range n {
			wait = s.Rates().Wait(q, s.Rates().Enter(q, 1, now), 1, now)
		}
		ps.Depart(s)
		return wait
	}
	publishes("p", 10)
	if wait := publishes("p", 1); wait != time.Second/10 {
		t.Fatalf("the 11th publish, on another connection, waits %v, want 100ms", wait)
	}
	if f := ps.Figures(); f.Principals != 0 || f.Bytes == 0 {
		t.Errorf("of a principal that has left the figures are %+v", f)
	}
	publishes("q", 10)
	if wait := publishes("p", 1); wait != 2*time.Second/10 {
		t.Errorf("with two records of principals that have left, the first waits %v, want 200ms", wait)
	}
	publishes("r", 10) // one more than there may be: the oldest, q, goes
	if wait := publishes("q", 10); wait != 0 {
		t.Errorf("the oldest of three waits %v", wait)
	}
	now += 2 * time.Second
	for _, name := range []string{"x", "y"} {
		publishes(name, 0) // looks at those that are over
	}
	if f := ps.Figures(); f != (Figures{}) || pool.Used() != 0 {
		t.Errorf("when all has passed the figures are %+v, and %d bytes are charged", f, pool.Used())
	}
}
