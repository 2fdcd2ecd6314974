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
