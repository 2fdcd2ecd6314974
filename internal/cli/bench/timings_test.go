package bench

import (
	"math"
	"testing"
	"time"
)

// A bucket has what is up to its bound and above that of the one before, and no bucket is
// wider than a sixteenth of what is in it.
func TestBuckets(t *testing.T) {
	t.Parallel()
	for _, ns := range []int64{0, 1, 15, 16, 17, 31, 32, 33, 1000, 999_999, 1 << 40, 1<<40 + 1, math.MaxInt64} {
		b := bucketOf(ns)
		if ns > upTo(b) || b > 0 && ns <= upTo(b-1) {
			t.Errorf("%d is in bucket %d, of %d to %d", ns, b, upTo(max(b-1, 0))+1, upTo(b))
		}
		if width := upTo(b) - ns; width > max(ns/subBuckets, 0)+1 {
			t.Errorf("%d is in a bucket up to %d", ns, upTo(b))
		}
	}
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	var none, some timings
	if got := none.percentile(500); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for i := range 1000 {
		some.observe(time.Duration(i+1) * time.Millisecond)
	}
	for perMille, want := range map[int64]time.Duration{500: 500 * time.Millisecond, 990: 990 * time.Millisecond, 1000: time.Second} {
		if got := some.percentile(perMille); got < want || got > want+want/subBuckets {
			t.Errorf("%d of 1000 within %v, want %v", perMille, got, want)
		}
	}
	if got := time.Duration(some.longest.Load()); got != time.Second {
		t.Errorf("the longest is %v", got)
	}
}
