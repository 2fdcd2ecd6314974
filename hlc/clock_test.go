package hlc_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
)

// clockAt makes a clock over a machine clock that the test moves.
func clockAt(wall *uint64, opts ...hlc.ClockOption) *hlc.Clock {
	return hlc.NewClock("client", append(opts, hlc.WithWall(func() uint64 { return *wall }))...)
}

func TestClockRisesWhenTheMachineStepsBack(t *testing.T) {
	t.Parallel()
	wall := uint64(1_000_000)
	c := clockAt(&wall)
	var last hlc.Timestamp
	for _, step := range []uint64{1_000_000, 1_000_000, 999_000, 5, 1_000_001, 1_000_001} {
		wall = step
		now := c.Now()
		if now.Compare(last) <= 0 {
			t.Errorf("at %d: %v isn't later than %v", step, now, last)
		}
		last = now
	}
	if last.String() != "1000001:2:client" {
		t.Errorf("the last reading is %v", last)
	}
}

func TestClockIsLaterThanWhatItObserved(t *testing.T) {
	t.Parallel()
	wall := uint64(1_000_000)
	c := clockAt(&wall)
	for _, seen := range []hlc.Timestamp{
		ts(1_000_000, 7, "store"),
		ts(1_060_000, 3, "store"),
		ts(1_060_000, 1<<40, "store"),
		ts(3, 3, "store"), // long ago: changes nothing
		{},
	} {
		before := c.Now()
		if err := c.Observe(seen); err != nil {
			t.Errorf("Observe(%v) = %v", seen, err)
		}
		now := c.Now()
		if now.Compare(seen) <= 0 || now.Compare(before) <= 0 || now.Node != "client" {
			t.Errorf("after %v and %v: %v", before, seen, now)
		}
	}
}

func TestClockRefusesWhatIsTooFarAhead(t *testing.T) {
	t.Parallel()
	wall := uint64(1_000_000)
	for _, tc := range []struct {
		name  string
		clock *hlc.Clock
		skew  uint64
	}{
		{"60 s", clockAt(&wall), 60_000},
		{"30 s", clockAt(&wall, hlc.WithMaxSkew(30*time.Second)), 30_000},
	} {
		// It is the wall clock that counts, however far the clock itself is.
		if err := tc.clock.Observe(ts(wall+tc.skew, 1, "store")); err != nil {
			t.Errorf("%s: at the bound: %v", tc.name, err)
		}
		before := tc.clock.Now()
		if err := tc.clock.Observe(ts(wall+tc.skew+1, 1, "store")); !errors.Is(err, hlc.ErrAhead) {
			t.Errorf("%s: beyond the bound: %v", tc.name, err)
		}
		if now := tc.clock.Now(); now.Wall != before.Wall || now.Counter != before.Counter+1 {
			t.Errorf("%s: a refused timestamp moved the clock from %v to %v", tc.name, before, now)
		}
	}
}

// The store has refused readings of a clock that is 90 s ahead.
func TestClockIsCorrected(t *testing.T) {
	t.Parallel()
	wall := uint64(1_090_000)
	c := clockAt(&wall)
	c.Now()
	if ahead := c.Correct(1_000_000); ahead != 90*time.Second || c.Ahead() != ahead {
		t.Errorf("the clock is %v ahead, and then %v; want 90s", ahead, c.Ahead())
	}
	wall += 5
	for _, want := range []string{"1000005:1:client", "1000005:2:client"} {
		if got := c.Now().String(); got != want {
			t.Errorf("the next reading is %s, want %s", got, want)
		}
	}
	// The machine's clock is set right: versions of the store are no longer ahead of it.
	wall = 1_001_000
	if err := c.Observe(ts(1_001_000, 1, "store")); err != nil || c.Ahead() != 0 {
		t.Errorf("Observe: %v, %v ahead", err, c.Ahead())
	}
	if got := c.Now().String(); got != "1001000:2:client" {
		t.Errorf("then it reads %s", got)
	}
	// A clock that is right, after an observation that was ahead.
	if err := c.Observe(ts(1_050_000, 1, "store")); err != nil {
		t.Fatal(err)
	}
	if ahead := c.Correct(1_001_000); ahead != 0 {
		t.Errorf("the clock is %v ahead, want 0", ahead)
	}
	if got := c.Now().String(); got != "1001000:1:client" {
		t.Errorf("then it reads %s", got)
	}
}

func TestClockReadsTheMachine(t *testing.T) {
	t.Parallel()
	before := uint64(time.Now().UnixMilli())
	now := hlc.NewClock("client").Now()
	if after := uint64(time.Now().UnixMilli()); now.Wall < before || now.Wall > after+1 {
		t.Errorf("%v isn't between %d and %d", now, before, after)
	}
}

func TestClockIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	c := hlc.NewClock("client")
	const readers, readings = 8, 500
	seen := make([][]hlc.Timestamp, readers)
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			for range readings {
				now := c.Now()
				seen[i] = append(seen[i], now)
				if err := c.Observe(now); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	all := map[hlc.Timestamp]bool{}
	for _, mine := range seen {
		for j, now := range mine {
			if all[now] || j > 0 && now.Compare(mine[j-1]) <= 0 {
				t.Fatalf("%v was given out twice or out of order", now)
			}
			all[now] = true
		}
	}
}

func BenchmarkClockNow(b *testing.B) {
	c := hlc.NewClock("client")
	b.ReportAllocs()
	for b.Loop() {
		c.Now()
	}
}
