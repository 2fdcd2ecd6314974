package lease

import (
	"testing"
	"time"
)

func TestLeaseLastsFromTheBeginningOfItsRound(t *testing.T) {
	t.Parallel()
	l := New(time.Second)
	if l.Valid(-time.Hour) || l.Valid(0) {
		t.Error("a lease without a round")
	}
	number := l.Begin(5 * time.Second)
	if l.Valid(5 * time.Second) {
		t.Error("a lease before a quorum has answered")
	}
	l.Confirm(number)
	if !l.Valid(5*time.Second + 719*time.Millisecond) {
		t.Error("the lease ended early")
	}
	if l.Valid(5*time.Second + 720*time.Millisecond) {
		t.Error("the lease lasts longer than 0.72 of the election timeout")
	}
}

func TestEarlierRoundDoesNotShortenALease(t *testing.T) {
	t.Parallel()
	l := New(time.Second)
	first, second := l.Begin(0), l.Begin(100*time.Millisecond)
	l.Confirm(second)
	l.Confirm(first)
	if !l.Valid(819 * time.Millisecond) {
		t.Error("the lease ended with the first round's")
	}
}

func TestRoundsBeforeARevocationGiveNoLease(t *testing.T) {
	t.Parallel()
	l := New(time.Second)
	confirmed, late := l.Begin(0), l.Begin(0)
	l.Confirm(confirmed)
	l.Revoke()
	l.Confirm(late)
	if l.Valid(0) {
		t.Error("a lease after Revoke")
	}
	if next := l.Begin(0); next == confirmed || next == late {
		t.Error("a round has the number of an earlier one")
	}
}

func TestRoundsAreBounded(t *testing.T) {
	t.Parallel()
	l := New(time.Second)
	oldest := l.Begin(0)
	for range maxRounds {
		l.Begin(0)
	}
	if len(l.rounds) != maxRounds {
		t.Errorf("%d rounds are under way, want %d", len(l.rounds), maxRounds)
	}
	l.Confirm(oldest)
	if l.Valid(0) {
		t.Error("a round that was forgotten gave a lease")
	}
}

func TestPromiseOutlastsTheLease(t *testing.T) {
	t.Parallel()
	l, p := New(time.Second), NewPromise(time.Second)
	if p.Binds(0) {
		t.Error("a new promise binds")
	}
	number := l.Begin(0)
	p.Make(0) // at once, which is the worst case
	l.Confirm(number)
	// The follower's clock runs 38 % faster than the leader's.
	for leader := time.Duration(0); l.Valid(leader); leader += time.Millisecond {
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
	if r := l.Remaining(5); r != 0 {
		t.Errorf("before the first round: %d", r)
	}
	l.Confirm(l.Begin(100))
	for now, want := range map[time.Duration]time.Duration{100: 720, 819: 1, 820: 0, 5000: 0} {
		if r := l.Remaining(now); r != want {
			t.Errorf("at %d: %d, want %d", now, r, want)
		}
	}
	l.Revoke()
	if r := l.Remaining(100); r != 0 {
		t.Errorf("after it was given up: %d", r)
	}
}
