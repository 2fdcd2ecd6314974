package partition

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
)

// The clock of one node is a minute ahead, and that of another a minute behind. Versions rise from leader to
// leader, nothing that was acknowledged is lost, and the node whose clock is behind the versions by more
// than a minute gives the leadership on.
func TestWrongClocks(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	var plans []Plan
	for i, shift := range []time.Duration{time.Minute, 0, -time.Minute} {
		plans = append(plans, Plan{Name: string(rune('a' + i)), Env: []string{fmt.Sprintf("HOLDFAST_TEST_CLOCK_SHIFT_MS=%d", shift.Milliseconds())}})
	}
	w := run(t, program(t, shifted), plans, "--cluster-election-timeout", "2s")
	ahead, right, behind := w.Nodes()[0], w.Nodes()[1], w.Nodes()[2]
	var last hlc.Timestamp
	written := 0
	set := func() {
		t.Helper()
		c, _ := w.dial(w.leader(0).Leader)
		r := w.set(c, fmt.Sprint("key", written), fmt.Sprint(written))
		if r.Version.Compare(last) <= 0 {
			t.Errorf("version %v after %v", r.Version, last)
		}
		last = r.Version
		written++
	}

	w.lead(ahead)
	set()
	if lead := time.Until(time.UnixMilli(int64(last.Wall))); lead < 30*time.Second {
		t.Fatalf("the version %v is %v ahead: the node's clock is not", last, lead)
	}
	w.Kill(ahead)
	w.serving(right, behind)
	w.eventually("node "+right.Name+" leads: the clock of the other one is two minutes behind the versions", func() bool {
		return w.leader(0, right, behind).Leader == right
	})
	set()
	w.must(w.Start(ahead))
	w.serving(ahead)
	w.eventually("node "+behind.Name+" gives the leadership away, because of its clock", func() bool {
		_ = w.Transfer(w.ctx, behind)
		return strings.Contains(behind.Output(), "giving the leadership away") && strings.Contains(behind.Output(), "clock")
	})
	w.serving(w.Nodes()...)
	set()
	for i := range written {
		c, _ := w.dial(behind)
		if v, _, err := c.Get(w.ctx, fmt.Sprint("key", i)); err != nil || string(v.Bytes) != fmt.Sprint(i) {
			t.Errorf("key%d holds %q, %v", i, v.Bytes, err)
		}
	}
}

// The clock of one node is two hours ahead, as that of a machine with a wrong time zone in its hardware clock. It does
// not lead while both others can, no version is of the future whichever node dies, and so clients are served at
// once by the next one.
func TestNodeWhoseClockIsFarAhead(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	const ahead = 2 * time.Hour
	plans := []Plan{{Name: "a", Env: []string{fmt.Sprintf("HOLDFAST_TEST_CLOCK_SHIFT_MS=%d", ahead.Milliseconds())}}, {Name: "b"}, {Name: "c"}}
	w := run(t, program(t, shifted), plans, "--cluster-election-timeout", "2s")
	wrong := w.Nodes()[0]
	set := func(key string) {
		t.Helper()
		c, _ := w.dial(w.leader(0).Leader)
		r := w.set(c, key, "value")
		if off := time.Until(time.UnixMilli(int64(r.Version.Wall))); off.Abs() > time.Minute {
			t.Fatalf("the version %v is %v away from the right time", r.Version, off)
		}
	}
	w.eventually("another node leads, and node a knows why it does not", func() bool {
		return w.leader(0).Leader != wrong && w.line(wrong).Unfit
	})
	set("first")
	if err := w.Transfer(w.ctx, wrong); err == nil || !strings.Contains(err.Error(), "its clock is wrong") {
		t.Errorf("a transfer to the node with the wrong clock: %v", err)
	}
	if off := time.Duration(w.line(wrong).ClockAheadMs) * time.Millisecond; (off - ahead).Abs() > time.Minute {
		t.Errorf("the status says that its clock is %v ahead", off)
	}
	for i := range 2 {
		leader := w.leader(0).Leader
		w.Kill(leader)
		var left []*nodes.Node
		for _, n := range w.Nodes() {
			if n != leader {
				left = append(left, n)
			}
		}
		w.serving(left...)
		c, _ := w.dial(w.leader(0, left...).Leader)
		r := w.set(c, fmt.Sprint("key", i), "value")
		if off := time.Until(time.UnixMilli(int64(r.Version.Wall))); off.Abs() > time.Minute {
			t.Fatalf("with node a and another one left, the version %v is %v away from the right time", r.Version, off)
		}
		w.must(w.Start(leader))
		w.serving(w.Nodes()...)
		w.eventually("node a does not lead when both others can", func() bool { return w.leader(0).Leader != wrong })
		set(fmt.Sprint("again", i))
	}
	if strings.Contains(w.Output(), "is behind the versions of the store") {
		t.Error("a node has met versions of the future")
	}
}
