package histogram

import (
	"math"
	"sync"
	"testing"
)

// A value counts in the first bucket whose bound it does not pass.
func TestBuckets(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		value  int64
		bucket int // Buckets: above all bounds
	}{
		{math.MinInt64, 0}, {-1, 0}, {0, 0}, {1, 0}, {10, 0}, {11, 1}, {20, 1}, {21, 2}, {40, 2}, {41, 3},
		{10 << (Buckets - 1), Buckets - 1}, {10<<(Buckets-1) + 1, Buckets}, {math.MaxInt64, Buckets},
	} {
		h := New(10)
		h.Observe(test.value)
		s := h.Read()
		for i, n := range s.Cumulative {
			if want := i >= test.bucket; (n == 1) != want {
				t.Errorf("%d: %d values up to %d, want it in bucket %d", test.value, n, s.Bounds[i], test.bucket)
			}
		}
		if s.Count != 1 || s.Sum != max(test.value, 0) {
			t.Errorf("%d: %d values with the sum %d", test.value, s.Count, s.Sum)
		}
	}
}

// What was counted between two readings is told from what was counted before.
func TestBetweenReadings(t *testing.T) {
	t.Parallel()
	h, other := New(10), New(10)
	for range 1000 {
		h.Observe(1000)
	}
	before := h.Read()
	for v := range int64(100) {
		h.Observe(v + 1)
		other.Observe(5000)
	}
	since := h.Read()
	since.Since(&before)
	for share, want := range map[float64]int64{0.1: 10, 0.5: 80, 0.8: 80, 0.81: 160, 1: 160} {
		if got, ok := since.Within(share); got != want || !ok {
			t.Errorf("%v of all within %d, %v; want %d", share, got, ok, want)
		}
	}
	o := other.Read()
	since.Add(&o)
	if got, _ := since.Within(0.99); got != 5120 || since.Count != 200 || since.Sum != 5050+500_000 {
		t.Errorf("with the others: 99 %% within %d, %d values, sum %d", got, since.Count, since.Sum)
	}
	if got, ok := new(Snapshot).Within(0.5); ok {
		t.Errorf("of nothing: %d", got)
	}
}

func TestNoHistogram(t *testing.T) {
	t.Parallel()
	var h *Histogram
	h.Observe(1)
	if s := h.Read(); s.Count != 0 {
		t.Error(s)
	}
}

func TestConcurrentValues(t *testing.T) {
	t.Parallel()
	h := New(1)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for v := range int64(1000) {
				h.Observe(v)
				h.Read()
			}
		})
	}
	all.Wait()
	if s := h.Read(); s.Count != 4000 || s.Sum != 4*999*1000/2 {
		t.Errorf("%d values with the sum %d", s.Count, s.Sum)
	}
}

func BenchmarkObserve(b *testing.B) {
	h := New(1000)
	b.ReportAllocs()
	for i := range b.N {
		h.Observe(int64(i))
	}
}
