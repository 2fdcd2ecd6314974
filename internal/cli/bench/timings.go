package bench

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// timings counts how long something took, in buckets that are at most a sixteenth wide:
// what it says of a percentile is at most that much above the truth. Its methods are safe
// for concurrent use.
type timings struct {
	name    string
	count   atomic.Int64
	longest atomic.Int64 // ns
	buckets [subBuckets * (64 - subBits)]atomic.Int64
}

// A bucket is told by the highest bit of a time in nanoseconds and the subBits below it.
const (
	subBits    = 4
	subBuckets = 1 << subBits
)

func bucketOf(ns int64) int {
	n := uint64(max(ns, 0))
	if n < subBuckets {
		return int(n)
	}
	shift := bits.Len64(n) - 1 - subBits
	return shift*subBuckets + int(n>>shift)
}

// upTo is the longest time of a bucket.
func upTo(bucket int) int64 {
	if bucket < subBuckets {
		return int64(bucket)
	}
	shift := bucket/subBuckets - 1
	return (int64(bucket%subBuckets)+subBuckets+1)<<shift - 1
}

func (t *timings) observe(took time.Duration) {
	t.buckets[bucketOf(int64(took))].Add(1)
	t.count.Add(1)
	for {
		longest := t.longest.Load()
		if int64(took) <= longest || t.longest.CompareAndSwap(longest, int64(took)) {
			return
		}
	}
}

// percentile is the time within which so many of 1,000 were done; 0: there was none.
func (t *timings) percentile(perMille int64) time.Duration {
	rank := (t.count.Load()*perMille + 999) / 1000
	var seen int64
	for i := range t.buckets {
		seen += t.buckets[i].Load()
		if seen >= rank && seen > 0 {
			return time.Duration(min(upTo(i), t.longest.Load()))
		}
	}
	return 0
}
