package principals

import "container/list"

// SessionPlace is where a session stands; the session has it. Subscriptions of the session are
// taken and returned with the session's lock held, and so is Move called.
type SessionPlace struct {
	p    *Principal    // nil: the session has not begun, or has ended
	away *list.Element // in Principal.away; nil: its client is connected
}

// Sessions is how many sessions a principal has.
func (t *Table) Sessions(name string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byName[name]; p != nil {
		return p.sessions
	}
	return 0
}

// MostSessions is the principal with most sessions; empty if there are none.
func (t *Table) MostSessions() string { return t.Figures().MostSessions.Name }

// Enter counts a session and its subscriptions with a principal; at is the session's place,
// and not taken.
func (t *Table) Enter(at *SessionPlace, name string, subscriptions int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enter(at, name, subscriptions)
}

func (t *Table) enter(at *SessionPlace, name string, subscriptions int) {
	p := t.record(name)
	p.sessions++
	p.subscriptions.Add(int64(subscriptions))
	at.p = p
	t.changed(p)
}

// Leave undoes Enter, and Away, when the session has returned all of its subscriptions.
func (t *Table) Leave(at *SessionPlace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave(at)
}

func (t *Table) leave(at *SessionPlace) {
	at.back()
	p := at.p
	at.p = nil
	p.sessions--
	t.changed(p)
}

// Move counts a session, which has so many subscriptions, with another principal than
// before, where it is the last to have left if its client is away.
func (t *Table) Move(at *SessionPlace, name string, subscriptions int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.p == nil || at.p.name == name {
		return
	}
	var session any
	if at.away != nil {
		session = at.away.Value
	}
	at.p.subscriptions.Add(int64(-subscriptions))
	t.leave(at)
	t.enter(at, name, subscriptions)
	if session != nil {
		at.away = at.p.away.PushBack(session)
	}
}

// Away notes that the client of a session, whose place is at, has left now. A session that
// has ended stays out.
func (t *Table) Away(at *SessionPlace, session any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.p != nil && at.away == nil {
		at.away = at.p.away.PushBack(session)
	}
}

// Back notes that the client of a session has come back.
func (t *Table) Back(at *SessionPlace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at.back()
}

func (at *SessionPlace) back() {
	if at.away != nil {
		at.p.away.Remove(at.away)
		at.away = nil
	}
}

// Next gives the session of a principal whose client is away longest, as it was given to
// Away, and puts it behind the others that are away: goroutines that look for a session at
// the same time get different ones, and a session that may not end isn't looked at again
// before them. nil: none is away.
func (t *Table) Next(name string) (session any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.byName[name]
	if p == nil || p.away.Len() == 0 {
		return nil
	}
	first := p.away.Front()
	p.away.MoveToBack(first)
	return first.Value
}

// TakeSubscription counts one more subscription of the session's principal, or says false
// if it has bound of them already; 0: there is no bound.
func (at *SessionPlace) TakeSubscription(bound int64) bool {
	if n := at.p.subscriptions.Add(1); bound > 0 && n > bound {
		at.p.subscriptions.Add(-1)
		return false
	}
	return true
}

// ReturnSubscriptions undoes TakeSubscription n times.
func (at *SessionPlace) ReturnSubscriptions(n int) {
	if at.p != nil {
		at.p.subscriptions.Add(int64(-n))
	}
}
