// Package latency counts durations.
package latency

import (
	"math/bits"
	"time"
)

// Histogram counts durations in buckets that are at most 1/32 of their value
// wide, so that a percentile is right to 3 %.
type Histogram struct {
	Count   uint64
	buckets [40 * 32]uint64
}

// Add counts a duration n times.
func (h *Histogram) Add(d time.Duration, n int) {
	h.Count += uint64(n)
	h.buckets[bucketOf(d)] += uint64(n)
}

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 1))
	shift := max(bits.Len64(v)-6, 0)
	return min(shift*32+int(v>>shift), 40*32-1)
}

// upper is the largest duration that a bucket counts.
func upper(bucket int) time.Duration {
	if bucket < 64 {
		return time.Duration(bucket)
	}
	shift := bucket/32 - 1
	return time.Duration((uint64(bucket-shift*32)+1)<<shift - 1)
}

// Merge adds what o has counted.
func (h *Histogram) Merge(o *Histogram) {
	h.Count += o.Count
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
}

// Percentile gives the duration that a share p of what was counted doesn't
// exceed; 0 if nothing was.
func (h *Histogram) Percentile(p float64) time.Duration {
	want := uint64(float64(h.Count) * p)
	var seen uint64
	for i, n := range h.buckets {
		if seen += n; n > 0 && seen > want {
			return upper(i)
		}
	}
	return 0
}
