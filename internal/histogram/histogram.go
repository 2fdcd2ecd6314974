// Package histogram counts values in buckets without a lock, for figures that are taken on
// busy paths and read now and then. It knows nothing of what it counts.
package histogram

import (
	"math/bits"
	"sync/atomic"
)

// Buckets is how many buckets a Histogram has besides the last, which has no bound.
const Buckets = 26

// Histogram counts values in buckets of which each goes up to twice the value of the one
// before. Its methods are safe for concurrent use.
type Histogram struct {
	unit   int64
	counts [Buckets + 1]atomic.Int64
	sum    atomic.Int64
}

// New makes a Histogram whose first bucket goes up to unit, which is above 0.
func New(unit int64) *Histogram { return &Histogram{unit: unit} }

// Observe counts a value; one below 0 counts as 0. It does nothing on nil.
func (h *Histogram) Observe(v int64) {
	if h == nil {
		return
	}
	v = max(v, 0)
	h.counts[min(bits.Len64(uint64(max(v-1, 0)/h.unit)), Buckets)].Add(1)
	h.sum.Add(v)
}

// Snapshot is what a Histogram has counted.
type Snapshot struct {
	Bounds     [Buckets]int64 // the largest value of each bucket
	Cumulative [Buckets]int64 // values up to that bound
	Count, Sum int64          // of all values
}

// Read gives what has been counted; zero on nil. Values that are counted meanwhile may be
// in a part of it.
func (h *Histogram) Read() (s Snapshot) {
	if h == nil {
		return s
	}
	for i := range s.Bounds {
		s.Bounds[i] = h.unit << i
		s.Count += h.counts[i].Load()
		s.Cumulative[i] = s.Count
	}
	s.Count += h.counts[Buckets].Load()
	s.Sum = h.sum.Load()
	return s
}

// Add adds what another Histogram of the same unit has counted, or one of a zero Snapshot.
func (s *Snapshot) Add(o *Snapshot) { s.combine(o, 1) }

// Since takes out what an earlier Snapshot had counted already.
func (s *Snapshot) Since(earlier *Snapshot) { s.combine(earlier, -1) }

func (s *Snapshot) combine(o *Snapshot, sign int64) {
	for i := range s.Bounds {
		s.Bounds[i] = max(s.Bounds[i], o.Bounds[i])
		s.Cumulative[i] += sign * o.Cumulative[i]
	}
	s.Count += sign * o.Count
	s.Sum += sign * o.Sum
}

// Within is the bound of the first bucket up to which a share of all values was counted; the
// largest bound if that is not enough. ok is false if nothing was counted.
func (s *Snapshot) Within(share float64) (bound int64, ok bool) {
	for i, n := range s.Cumulative {
		if n > 0 && float64(n) >= share*float64(s.Count) {
			return s.Bounds[i], true
		}
	}
	return s.Bounds[Buckets-1], s.Count > 0
}
