package crashtest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"holdfast/hlc"
	"holdfast/internal/statestore"
)

const (
	leaseMs = 150 // how long a lock is taken for
	// leaseMargin is by how much a holder stops earlier: deadlines are whole milliseconds.
	leaseMargin = int64(2 * time.Millisecond)
	pollEvery   = 5 * time.Millisecond
)

// lockHolder takes locks as clients do: SET lock name NX PX, renewed with NEX
// PX, released with VDEL. The version of the SET is the fencing token with which
// it writes to what the lock guards.
type lockHolder struct {
	historian
	chapter *chapter
	held    []tenure
}

// tenure is a time for which somebody was entitled to think that the lock is theirs.
type tenure struct {
	lock, holder string
	from, to     int64
	token        hlc.Timestamp
}

func (h *lockHolder) live(l *life) error {
	if l.settle {
		return nil
	}
	s, err := dialStore(l, h.name, h.clock)
	if err != nil {
		return l.ended(h.name, err)
	}
	l.news.count()
	for {
		lock := h.chapter.locks[h.rng.IntN(len(h.chapter.locks))]
		if err := h.tryLock(l, s, lock); err != nil {
			return h.over(l, s, err)
		}
	}
}

func (h *lockHolder) tryLock(l *life, s *storeLink, lock string) error {
	r := h.request(statestore.Set, lock)
	r.value, r.px, r.condition = h.name, leaseMs, statestore.IfAbsent
	if h.rng.IntN(4) == 0 {
		r.condition = statestore.IfAbsentOrEqual
	}
	called := now()
	got, err := h.ask(l, s, r)
	if err != nil {
		return err
	}
	if got.kind != statestore.OK {
		return h.pause(l)
	}
	t := &tenure{lock: lock, holder: h.name, from: now(), to: called + leaseMs*int64(time.Millisecond) - leaseMargin, token: got.version}
	err = h.hold(l, s, t)
	h.held = append(h.held, *t)
	return err
}

// pause is how often a lock is asked for: a pace, which nothing relies on.
func (h *lockHolder) pause(l *life) error {
	next := time.NewTimer(pollEvery)
	defer next.Stop()
	select {
	case <-next.C:
	case <-l.dead:
	}
	return nil
}

// hold works under the lock, and lets go of it or lets it run out.
func (h *lockHolder) hold(l *life, s *storeLink, t *tenure) error {
	for h.rng.IntN(4) > 0 {
		r := h.request(statestore.Set, t.lock+"/guarded")
		r.value, r.token = h.unique(), t.token
		if h.rng.IntN(3) == 0 {
			r = h.request(statestore.Set, t.lock)
			r.value, r.px, r.condition = h.name, leaseMs, statestore.IfAbsentOrEqual
		}
		called := now()
		got, err := h.ask(l, s, r)
		switch {
		case err != nil:
			return err
		case called >= t.to:
			return nil // it ran out; somebody else may have it by now
		case got.kind != statestore.OK && got.ret < t.to:
			return fmt.Errorf("%w: the holder of %q, by token %v, was refused: %v got %v", errBroken, t.lock, t.token, r, got)
		case r.key == t.lock && got.kind == statestore.OK:
			t.to = called + leaseMs*int64(time.Millisecond) - leaseMargin
		}
	}
	if h.rng.IntN(3) == 0 {
		return nil
	}
	h.letGo(t)
	r := h.request(statestore.VDel, t.lock)
	r.value = h.name
	_, err := h.ask(l, s, r)
	return err
}

// letGo ends the tenure, and those of the same lock that were left to run out.
func (h *lockHolder) letGo(t *tenure) {
	t.to = min(t.to, now())
	for i := range h.held {
		if h.held[i].lock == t.lock {
			h.held[i].to = min(h.held[i].to, t.to)
		}
	}
}

// takeHeld hands over the tenures since the last time.
func (h *lockHolder) takeHeld() []tenure {
	held := h.held
	h.held = nil
	return held
}

// checkTenures checks that no two holders had one lock at one time, and that
// later ones got higher tokens.
func checkTenures(all []tenure) (violations []string) {
	slices.SortFunc(all, func(a, b tenure) int {
		return cmp.Or(cmp.Compare(a.lock, b.lock), cmp.Compare(a.from, b.from))
	})
	last := map[string]tenure{}
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
