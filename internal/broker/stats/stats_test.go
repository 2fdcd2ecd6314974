package stats

import (
	"sync/atomic"
	"testing"
)

// What a goroutine has counted is added to the flows of each QoS and to their total, once.
func TestTally(t *testing.T) {
	t.Parallel()
	var c Counters
	var total atomic.Int64
	var tally Tally
	tally.Add(0, 5)
	tally.Add(2, 7)
	tally.Add(2, 0)
	for range 2 {
		tally.MoveTo(&c.In, &total)
	}
	for q, want := range [3][2]int64{{1, 5}, {0, 0}, {2, 7}} {
		if f := &c.In[q]; f.Messages.Load() != want[0] || f.Bytes.Load() != want[1] {
			t.Errorf("QoS %d: %d messages, %d bytes; want %v", q, f.Messages.Load(), f.Bytes.Load(), want)
		}
	}
	if total.Load() != 3 {
		t.Errorf("%d messages in all, want 3", total.Load())
	}
}
