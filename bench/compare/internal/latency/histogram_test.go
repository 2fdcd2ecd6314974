package latency

import (
	"testing"
	"time"
)

func TestPercentilesAreRightToThreePercent(t *testing.T) {
	t.Parallel()
	var h Histogram
	for i := range 100_000 {
		h.Add(time.Duration(i+1)*time.Microsecond, 1)
	}
	for _, c := range []struct {
		p    float64
		want time.Duration
	}{{0.5, 50 * time.Millisecond}, {0.99, 99 * time.Millisecond}, {0.999, 99900 * time.Microsecond}} {
		got := h.Percentile(c.p)
		if got < c.want || got > c.want+c.want*4/100 {
			t.Errorf("percentile %v = %v, want %v and at most 4 %% more", c.p, got, c.want)
		}
	}
}

func TestBucketsHoldWhatTheyCount(t *testing.T) {
	t.Parallel()
	for d := time.Duration(1); d < time.Hour; d += d/7 + 1 {
		b := bucketOf(d)
		if upper(b) < d || b > 0 && upper(b-1) >= d {
			t.Fatalf("%v is in bucket %d, which ends at %v", d, b, upper(b))
		}
	}
}
