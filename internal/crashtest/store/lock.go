package store

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

const (
	leaseMs = 150 // the expiry of a lock
	// leaseMargin is how long before that a holder stops: deadlines are whole milliseconds.
	leaseMargin = int64(2 * time.Millisecond)
	pollEvery   = 5 * time.Millisecond
)

// LockHolder acquires locks as clients do: with SET lock name NX PX, renewed with NEX PX,
// and released with VDEL. The version of the SET is the fencing token of its writes to the
// key that the lock guards.
type LockHolder struct {
	historian
	Chapter *Chapter
	held    []Tenure
}

// NewLockHolder makes a holder of the locks of a chapter.
func NewLockHolder(number int, rng *rand.Rand, c *Chapter) *LockHolder {
	return &LockHolder{historian: newHistorian(fmt.Sprintf("holder%d", number), rng), Chapter: c}
}

// Tenure is a time during which a client could rightly take itself for the holder.
type Tenure struct {
	lock, holder string
	from, to     int64
	token        hlc.Timestamp
}

// Live implements lives.Actor.
func (h *LockHolder) Live(l *lives.Life) error {
	if l.Settle {
		return nil
	}
	s, err := h.dial(l)
	if err != nil {
		return h.ended(l, err)
	}
	l.Arrivals.Count()
	for {
		lock := h.Chapter.locks[h.rng.IntN(len(h.Chapter.locks))]
		if err := h.tryLock(l, s, lock); err != nil {
			return h.over(l, s, err)
		}
	}
}

func (h *LockHolder) tryLock(l *lives.Life, s *storeLink, lock string) error {
	r := h.request(statestore.Set, lock)
	r.Value, r.PX, r.Condition = h.name, leaseMs, statestore.IfAbsent
	if h.rng.IntN(4) == 0 {
		r.Condition = statestore.IfAbsentOrEqual
	}
	called := lives.Now()
	got, err := h.ask(l, s, r)
	if err != nil {
		return err
	}
	if got.Kind != statestore.OK {
		return h.pause(l)
	}
	t := &Tenure{lock: lock, holder: h.name, from: lives.Now(), to: called + leaseMs*int64(time.Millisecond) - leaseMargin, token: got.Version}
	err = h.hold(l, s, t)
	h.held = append(h.held, *t)
	return err
}

// pause is the time between two attempts to take a lock; no check depends on it.
func (h *LockHolder) pause(l *lives.Life) error {
	next := time.NewTimer(pollEvery)
	defer next.Stop()
	select {
	case <-next.C:
	case <-l.Dead:
	}
	return nil
}

// hold works under the lock, and releases it or lets it expire.
func (h *LockHolder) hold(l *lives.Life, s *storeLink, t *Tenure) error {
	for h.rng.IntN(4) > 0 {
		r := h.request(statestore.Set, t.lock+"/guarded")
		r.Value, r.Token = h.unique(), t.token
		if h.rng.IntN(3) == 0 {
			r = h.request(statestore.Set, t.lock)
			r.Value, r.PX, r.Condition = h.name, leaseMs, statestore.IfAbsentOrEqual
		}
		called := lives.Now()
		got, err := h.ask(l, s, r)
		switch {
		case err != nil:
			return err
		case called >= t.to:
			return nil // the lock has expired; another client may hold it
		case got.Kind != statestore.OK && got.Ret < t.to:
			return fmt.Errorf("%w: the holder of %q, by token %v, was refused: %v got %v", lives.ErrBroken, t.lock, t.token, r, got)
		case r.Key == t.lock && got.Kind == statestore.OK:
			t.to = called + leaseMs*int64(time.Millisecond) - leaseMargin
		}
	}
	if h.rng.IntN(3) == 0 {
		return nil
	}
	h.letGo(t)
	r := h.request(statestore.VDel, t.lock)
	r.Value = h.name
	_, err := h.ask(l, s, r)
	return err
}

// letGo ends the tenure, and those of the same lock that were left to run out.
func (h *LockHolder) letGo(t *Tenure) {
	t.to = min(t.to, lives.Now())
	for i := range h.held {
		if h.held[i].lock == t.lock {
			h.held[i].to = min(h.held[i].to, t.to)
		}
	}
}

// TakeHeld hands over the tenures since the last time.
func (h *LockHolder) TakeHeld() []Tenure {
	held := h.held
	h.held = nil
	return held
}

// CheckTenures checks that no two holders had one lock at one time, and that
// later ones got higher tokens.
func CheckTenures(all []Tenure) (violations []string) {
	slices.SortFunc(all, func(a, b Tenure) int {
		return cmp.Or(cmp.Compare(a.lock, b.lock), cmp.Compare(a.from, b.from))
	})
	last := map[string]Tenure{}
	for _, t := range all {
		if t.from >= t.to {
			continue // the reply came when the lease had run out
		}
		before, is := last[t.lock]
		switch {
		case is && before.holder != t.holder && t.from < before.to:
			violations = append(violations, fmt.Sprintf("%q has two holders: %s until %.3f ms, token %v, and %s from %.3f ms, token %v",
				t.lock, before.holder, float64(before.to)/1e6, before.token, t.holder, float64(t.from)/1e6, t.token))
		case is && t.token.Compare(before.token) <= 0:
			violations = append(violations, fmt.Sprintf("%q got token %v after %v", t.lock, t.token, before.token))
		}
		if !is || t.to > before.to {
			last[t.lock] = t
		}
	}
	return violations
}
