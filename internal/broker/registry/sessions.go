package registry

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Which session ends when there is no room for another.
//
// Sessions are counted for the principal that they belong to; of a client that has not
// proven who it is, the address that it came from is all that tells it from another one
// that takes every session there is. Each of them, called the holder here, has
// a bound of its own; and when all sessions together have reached theirs, those of
// the holder with most sessions make room. What ends are sessions whose client is
// away and for which nothing is queued, longest away first: a session that holds
// acknowledged messages, or whose client is connected, is never ended for another.
// A few sessions are kept for clients on this machine, so that an operator gets in.
//
// Sessions of no principal that were read from disk have no address until their client
// comes back; they count together as one.

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
func (r *Registry) newSession(t *session.Turn, c *peer.Peer, owner string) *session.Session {
	host := holder(owner, c)
	r.mu.Lock()
	crowded, full := r.crowded(c, host, owner)
	s := session.New(r.Env, c.Client, owner)
	r.enter(s, host)
	r.mu.Unlock()
	if full && !r.endOldest(t, crowded) {
		r.forget(s)
		return nil
	}
	return s
}

// holder is what the sessions of a client count for: its principal, or its address.
func holder(owner string, c *peer.Peer) string {
	if owner != "" {
		return owner
	}
	return c.Host()
}

// crowded says whether a session of the holder more needs another one's place, and
// which holder gives it; r.mu is held.
func (r *Registry) crowded(c *peer.Peer, host, owner string) (crowded string, full bool) {
	most := r.Limits.MaxSessions
	if c.Loopback() {
		most += min(r.Limits.LoopbackConnections, most/16)
	}
	switch {
	case r.hosts.Sessions(host) >= r.Limits.MaxSessionsPerHost:
		return host, true
	case r.sessions.len >= most, !r.Memory.Fits(memory.Sessions, sizeOf(c.Client, owner)):
		return r.hosts.Most(), true
	}
	return "", false
}

// sizeOf is what a session is charged with.
func sizeOf(id, owner string) int64 { return SessionMemory + int64(len(id)+len(owner)) }

// enter registers a session; r.mu is held, or no other goroutine knows the registry yet.
func (r *Registry) enter(s *session.Session, host string) {
	r.sessions.put(s)
	r.hosts.Enter(&s.Place, host)
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
	r.hosts.Leave(&s.Place)
	r.Memory.Credit(memory.Sessions, sizeOf(s.ID, s.Owner()))
}

// moveTo notes where the client of a session that it had before comes from now.
func (r *Registry) moveTo(s *session.Session, host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions.get(s.ID) == s {
		r.hosts.Move(&s.Place, host)
	}
}

// isAway notes that the session's client has left, and isBack that it has returned; s.Mu
// is held.
func (r *Registry) isAway(s *session.Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts.Away(&s.Place, s)
}

func (r *Registry) isBack(s *session.Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts.Back(&s.Place)
}

// endOldest ends the session of a holder that is away longest with nothing queued,
// and says whether it found one.
func (r *Registry) endOldest(t *session.Turn, host string) bool {
	for range candidates {
		r.mu.Lock()
		s, any := r.hosts.Next(host)
		r.mu.Unlock()
		if !any {
			return false
		}
		if r.endSessionIf(t, s, s.IdleAway) {
			r.Counters.SessionsDisplaced.Add(1)
			r.Log.Info("ending a session to make room for another: its client is away and nothing is queued for it", "client", s.ID, "holder", host)
			return true
		}
	}
	return false
}
