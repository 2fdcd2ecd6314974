package principals

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Rates holds the publishes of a principal to a rate, over all of its connections.
//
// A reader enters each PUBLISH packet before it handles it, and handles it when its turn has
// come. Turns are counted in units, publishes and bytes: what was entered moves the end of
// the queue, time moves the front at the principal's rate, and a packet's turn has come when
// it is no further from the front than the burst. So a principal that has been silent for a
// second may send as much as it may in a second at once, or one packet, and several
// connections take turns in the order in which their packets came.
//
// The rate is given at each call: another policy applies to packets that wait, too.
type Rates struct {
	mu        lockrank.Mutex[lockrank.Rates]
	publishes flow // guarded by mu
	bytes     flow // guarded by mu
}

// Ticket is the place of a packet in the queue of its principal.
type Ticket struct {
	publishes, bytes int64 // the end of the queue behind it
	counted          int64 // 1 if it counts among the publishes
	size             int64 // what it counts among the bytes
}

// ShortestWait is how far ahead of its turn a packet is handled: a shorter wait is not
// worth a timer.
const ShortestWait = time.Millisecond

// Enter counts a PUBLISH packet of size bytes. now is a clock that never steps.
func (r *Rates) Enter(q *access.Quota, size int, now time.Duration) (t Ticket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.Publishes > 0 {
		t.counted = 1
		t.publishes = r.publishes.enter(1, q.Publishes, now)
	}
	if q.PublishBytes > 0 {
		t.size = int64(size)
		t.bytes = r.bytes.enter(t.size, q.PublishBytes, now)
	}
	return t
}

// Add counts publishes that a packet has brought besides itself: those that come after it
// wait for them.
func (r *Rates) Add(q *access.Quota, publishes int, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.Publishes > 0 {
		r.publishes.enter(int64(publishes), q.Publishes, now)
	}
}

// Wait says how long it is to the packet's turn; 0: the turn has come. maxPacket is how many
// bytes a packet may have: one of that size is let through at once if the principal has been
// silent for long enough.
func (r *Rates) Wait(q *access.Quota, t Ticket, maxPacket int64, now time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var wait time.Duration
	if q.Publishes > 0 && t.counted > 0 {
		wait = r.publishes.wait(t.publishes, q.Publishes, 1, now)
	}
	if q.PublishBytes > 0 && t.size > 0 {
		wait = max(wait, r.bytes.wait(t.bytes, q.PublishBytes, maxPacket, now))
	}
	if wait <= ShortestWait {
		return 0
	}
	return wait
}

// Return undoes Enter for a packet that is not handled.
func (r *Rates) Return(t Ticket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publishes.end = max(r.publishes.front, r.publishes.end-t.counted)
	r.bytes.end = max(r.bytes.front, r.bytes.end-t.size)
}

// idleAt is when all that was entered has passed, so that the principal may send as much as
// one that has never sent anything; 0 if it hasn't.
func (r *Rates) idleAt() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.publishes.idleAt(), r.bytes.idleAt())
}

// flow is a queue of units: publishes, or bytes of them. At a billion a second its numbers
// suffice for centuries.
type flow struct {
	front, end int64         // front is never beyond end
	at         time.Duration // when the front was there
	rate       int64         // when units were entered last, a second
}

// enter puts units into the queue, and returns its end; rate is in units a second.
func (f *flow) enter(units, rate int64, now time.Duration) (place int64) {
	f.advance(rate, now)
	f.end += units
	f.rate = rate
	return f.end
}

// advance moves the front to where it is now.
func (f *flow) advance(rate int64, now time.Duration) {
	passed := (now - f.at).Seconds() * float64(rate)
	if passed >= float64(f.end-f.front) {
		f.front, f.at = f.end, max(f.at, now)
		return
	}
	units := int64(max(0, passed))
	f.front += units
	f.at += time.Duration(float64(units) / float64(rate) * float64(time.Second)) // a part of a unit is kept
}

func (f *flow) idleAt() time.Duration {
	if f.end == f.front {
		return 0
	}
	const longest = float64(1000 * time.Hour) // so that it doesn't overflow
	return f.at + time.Duration(min(float64(f.end-f.front)/float64(f.rate)*float64(time.Second), longest))
}

// longestWait is what wait gives at the most: the caller asks again.
const longestWait = time.Minute

// wait says how long it is until the front has come so near to place that the burst, at
// least what may be sent in a second, reaches it.
func (f *flow) wait(place, rate, burst int64, now time.Duration) time.Duration {
	f.advance(rate, now)
	ahead := place - f.front - max(rate, burst)
	if ahead <= 0 {
		return 0
	}
	left := float64(ahead)/float64(rate)*float64(time.Second) - float64(now-f.at)
	return time.Duration(min(max(left, 0), float64(longestWait)))
}
