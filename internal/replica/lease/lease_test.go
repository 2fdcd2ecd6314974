package lease

import (
	"testing"
	"time"
)

// at is a time at which both clocks show the same.
func at(d time.Duration) Moment { return Moment{d, d} }

func TestLeaseLastsFromTheBeginningOfItsRound(t *testing.T) {
	t.Parallel()
	l := New(time.Second)
	if l.Valid(at(-time.Hour)) || l.Valid(at(0)) {
		t.Error("a lease without a round")
	}
	number := l.Begin(at(5 * time.Second))
	if l.Valid(at(5 * time.Second)) {
		t.Error("a lease before a quorum has answered")
	}
	l.Confirm(number)
	if !l.Valid(at(5*time.Second + 719*time.Millisecond)) {
		t.Error("the lease ended early")
	}
	if l.Valid(at(5*time.Second + 720*time.Millisecond)) {
		t.Error("the lease lasts longer than 0.72 of the election timeout")
	}
}

func TestEarlierRoundDoesNotShortenALease(t *testing.T) {
	t.Parallel()
	l := New(time.Second)
	first, second := l.Begin(at(0)), l.Begin(at(100*time.Millisecond))
	l.Confirm(second)
	l.Confirm(first)
	if !l.Valid(at(819 * time.Millisecond)) {
		t.Error("the lease ended with the first round's")
	}
}

func TestRoundsBeforeARevocationGiveNoLease(t *testing.T) {
	t.Parallel()
	l := New(time.Second)
	confirmed, late := l.Begin(at(0)), l.Begin(at(0))
	l.Confirm(confirmed)
	l.Revoke()
	l.Confirm(late)
	if l.Valid(at(0)) {
		t.Error("a lease after Revoke")
	}
	if next := l.Begin(at(0)); next == confirmed || next == late {
		t.Error("a round has the number of an earlier one")
	}
}

func TestRoundsAreBounded(t *testing.T) {
	t.Parallel()
	l := New(time.Second)
	oldest := l.Begin(at(0))
	for range maxRounds {
		l.Begin(at(0))
	}
	if len(l.rounds) != maxRounds {
		t.Errorf("%d rounds are under way, want %d", len(l.rounds), maxRounds)
	}
	l.Confirm(oldest)
	if l.Valid(at(0)) {
		t.Error("a round that was forgotten gave a lease")
	}
}

func TestPromiseOutlastsTheLease(t *testing.T) {
	t.Parallel()
	l, p := New(time.Second), NewPromise(time.Second)
	if p.Binds(0) {
		t.Error("a new promise binds")
	}
	number := l.Begin(at(0))
	p.Make(0) // at once, which is the worst case
	l.Confirm(number)
	// The follower's clock runs 38 % faster than the leader's.
	for leader := time.Duration(0); l.Valid(at(leader)); leader += time.Millisecond {
		if follower := time.Duration(1.38 * float64(leader)); !p.Binds(follower) {
			t.Fatalf("the node may vote at %v of the leader's clock, and the lease is valid", leader)
		}
	}
	if p.Binds(time.Second) {
		t.Error("the promise binds for longer than one election timeout")
	}
}

func TestRemaining(t *testing.T) {
	t.Parallel()
	l := New(1000)
	if r := l.Remaining(at(5)); r != 0 {
		t.Errorf("before the first round: %d", r)
	}
	l.Confirm(l.Begin(at(100)))
	for now, want := range map[time.Duration]time.Duration{100: 720, 819: 1, 820: 0, 5000: 0} {
		if r := l.Remaining(at(now)); r != want {
			t.Errorf("at %d: %d, want %d", now, r, want)
		}
	}
	l.Revoke()
	if r := l.Remaining(at(100)); r != 0 {
		t.Errorf("after it was given up: %d", r)
	}
}

// The monotonic clock of a machine that was suspended stood still meanwhile. Its wall clock did not.
func TestLeaseEndsWhileTheMachineIsSuspended(t *testing.T) {
	t.Parallel()
	l := New(time.Second)
	begun := Moment{Monotonic: time.Hour, Wall: 56 * 365 * 24 * time.Hour}
	number := l.Begin(begun)
	wake := Moment{begun.Monotonic + 10*time.Millisecond, begun.Wall + 10*time.Second}
	l.Confirm(number) // by answers of before, which are read only now
	if l.Valid(wake) || l.Remaining(wake) != 0 {
		t.Errorf("the lease is valid for %v after ten seconds of suspension", l.Remaining(wake))
	}
	l.Confirm(l.Begin(wake))
	if wake = wake.add(719 * time.Millisecond); !l.Valid(wake) || l.Remaining(wake) != time.Millisecond {
		t.Errorf("a round after it has given a lease of %v, want 1ms", l.Remaining(wake))
	}
}

// A wall clock that is stepped moves no lease beyond its end by the monotonic clock, and takes none for longer
// than until the next round.
func TestLeaseAndStepsOfTheWallClock(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{-2 * time.Hour, -time.Millisecond, time.Second, 2 * time.Hour} {
		l := New(time.Second)
		l.Confirm(l.Begin(at(0)))
		after := Moment{Monotonic: time.Millisecond, Wall: time.Millisecond + step}
		if got, want := l.Valid(after), step < 0; got != want {
			t.Errorf("after a step of %v the lease is valid: %v, want %v", step, got, want)
		}
		if after.Monotonic = 720 * time.Millisecond; l.Valid(after) {
			t.Errorf("after a step of %v the lease lasts for longer", step)
		}
		l.Confirm(l.Begin(after))
		if after = after.add(719 * time.Millisecond); !l.Valid(after) {
			t.Errorf("after a step of %v the next round has given no lease", step)
		}
		if after = after.add(time.Millisecond); l.Valid(after) {
			t.Errorf("after a step of %v the lease of the next round lasts for longer", step)
		}
	}
}
