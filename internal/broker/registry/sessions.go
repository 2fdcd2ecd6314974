package registry

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Which session ends when there is no room for another.
//
// Sessions are counted for the principal that they belong to; of a client that has not
// proven who it is, the address that it came from is all that tells it from another one
// that takes every session there is. Each principal (package principals) has a bound of
// its own; and when all sessions together have reached theirs, those of the principal
// with most sessions make room. What ends are sessions whose client is
// away and for which nothing is queued, longest away first: a session that holds
// acknowledged messages, or whose client is connected, is never ended for another.
// A few sessions are kept for clients on this machine, and for principals with the
// reserve, so that an operator gets in.
//
// Sessions of clients without a proof that were read from disk have no address until their
// client comes back; they count together as one principal.

const (
	// SessionMemory is about what a session takes besides its client ID.
	SessionMemory = 1 << 10
	// candidates is how many sessions that are away are looked at for one that may
	// end; those that may not are looked at again after all others.
	candidates = 1000
)

// newSession registers a session for the connection's client, or gives nil if there
// may be no more. At a bound, the session that makes room ends after the new one is
// registered, so that no other client takes its place: there are more sessions than
// there may be while that lasts, at most as many more as clients are connecting.
func (r *Registry) newSession(t *session.Turn, c *Connection) *session.Session {
	owner := c.Identity.OwnedBy()
	principal := Principal(owner, c.Peer)
	r.mu.Lock()
	crowded, full := r.crowded(c, principal)
	s := session.New(r.Env, c.Client, owner)
	r.enter(s, principal)
	r.mu.Unlock()
	if full && !r.endOldest(t, crowded) {
		r.forget(s)
		return nil
	}
	return s
}

// Principal is what the connections and the sessions of a client count for: the principal
// that it has proven to be, or its address.
func Principal(owner string, c *peer.Peer) string {
	if owner != "" {
		return owner
	}
	return c.Host()
}

// crowded says whether a session of the principal more needs another one's place, and
// which principal gives it; r.mu is held.
func (r *Registry) crowded(c *Connection, principal string) (crowded string, full bool) {
	l := r.Limits()
	most := l.MaxSessions
	quota := access.QuotaOf(r.May, c.Identity)
	if c.Loopback() {
		most += min(l.LoopbackConnections, most/16)
	}
	if quota.Reserve {
		most += l.ReservedConnections
	}
	switch {
	case int64(r.Principals.Sessions(principal)) >= access.AtMost(quota.Sessions, int64(l.MaxSessionsPerPrincipal)):
		return principal, true
	case r.sessions.len >= most, !r.Memory.Fits(memory.Sessions, sizeOf(c.Client, c.Identity.OwnedBy())):
		return r.Principals.MostSessions(), true
	}
	return "", false
}

// sizeOf is what a session is charged with.
func sizeOf(id, owner string) int64 { return SessionMemory + int64(len(id)+len(owner)) }

// enter registers a session; r.mu is held, or no other goroutine knows the registry yet.
func (r *Registry) enter(s *session.Session, principal string) {
	r.sessions.put(s)
	r.Principals.Enter(&s.Place, principal, len(s.Subs))
	r.Memory.Charge(memory.Sessions, sizeOf(s.ID, s.Owner()))
}

// forget undoes enter, when the session has ended.
func (r *Registry) forget(s *session.Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions.get(s.ID) != s {
		return
	}
	r.sessions.remove(s.ID)
	r.Principals.Leave(&s.Place)
	r.Memory.Credit(memory.Sessions, sizeOf(s.ID, s.Owner()))
}

// moveTo notes which principal the client counts for now that had the session before: one
// that has not proven who it is may come from another address.
func (r *Registry) moveTo(s *session.Session, principal string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !s.Ended {
		r.Principals.Move(&s.Place, principal, len(s.Subs))
	}
}

// endOldest ends the session of a principal that is away longest with nothing queued,
// and says whether it found one.
func (r *Registry) endOldest(t *session.Turn, principal string) bool {
	for range candidates {
		s, any := r.Principals.Next(principal).(*session.Session)
		if !any {
			return false
		}
		if r.endSessionIf(t, s, s.IdleAway) {
			r.Counters.SessionsDisplaced.Add(1)
			r.Log.Info("ending a session to make room for another: its client is away and nothing is queued for it", "client", s.ID, "principal", principal)
			return true
		}
	}
	return false
}
