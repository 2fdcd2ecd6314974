package partition

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
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
