package broker

import (
	"cmp"
	"net"
	"slices"

	"holdfast/internal/memory"
)

// The registry of sessions, and who loses when there is no room for another.
//
// Until clients have identities, the address that a client came from is all that
// tells one client from another that takes every session there is. An address has
// a bound of its own; and when all sessions together have reached theirs, those of
// the address with most sessions make room. What ends are sessions whose client is
// away and for which nothing is queued, longest away first: a session that holds
// acknowledged messages, or whose client is connected, is never ended for another.
// A few sessions are kept for clients on this machine, so that an operator gets in.
//
// Sessions that were read from disk have no address until their client comes
// back; they count together as one.

const (
	// sessionMemory is about what a session takes besides its client ID.
	sessionMemory = 1 << 10
	// endedAtOnce is how many sessions end together when there is no room: finding
	// the oldest is a look at all of them.
	endedAtOnce = 64
)

// host is a client address with sessions.
type host struct {
	name     string // "": of sessions read from disk, whose clients haven't been here since
	sessions int    // guarded by Broker.mu
}

// host is the address that the client comes from, without its port.
func (c *Conn) host() string {
	addr := c.tr.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// newSession registers a session for the connection's client, or gives nil if there
// may be no more.
func (b *Broker) newSession(t *Turn, c *Conn) *Session {
	host := c.host()
	for range 2 {
		s, crowded := b.tryNewSession(c, host)
		if s != nil {
			return s
		}
		b.endOldest(t, crowded)
	}
	return nil
}

// tryNewSession registers a session, or says which address has too many.
func (b *Broker) tryNewSession(c *Conn, host string) (s *Session, crowded string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.limits.MaxSessions
	if c.loopback() {
		most += min(b.limits.LoopbackConnections, most/16)
	}
	switch {
	case b.hosts[host] != nil && b.hosts[host].sessions >= b.limits.MaxSessionsPerHost:
		return nil, host
	case len(b.sessions) >= most, !b.memory.Fits(memory.Sessions, sessionMemory+int64(len(c.clientID))):
		return nil, b.crowdedHost()
	}
	s = newSession(b, c.clientID)
	b.enter(s, host)
	return s, ""
}

// crowdedHost is the address with most sessions; b.mu is held.
func (b *Broker) crowdedHost() (crowded string) {
	most := -1
	for name, h := range b.hosts {
		if h.sessions > most {
			crowded, most = name, h.sessions
		}
	}
	return crowded
}

// enter registers a session; b.mu is held, or the broker isn't known to others yet.
func (b *Broker) enter(s *Session, host string) {
	b.sessions[s.id] = s
	b.enterHost(s, host)
	b.memory.Charge(memory.Sessions, sessionMemory+int64(len(s.id)))
}

// forget undoes enter, when the session has ended.
func (b *Broker) forget(s *Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions[s.id] != s {
		return
	}
	delete(b.sessions, s.id)
	b.leaveHost(s)
	b.memory.Credit(memory.Sessions, sessionMemory+int64(len(s.id)))
}

// enterHost counts a session with the address; b.mu is held.
func (b *Broker) enterHost(s *Session, name string) {
	h := b.hosts[name]
	if h == nil {
		h = &host{name: name}
		b.hosts[name] = h
	}
	h.sessions++
	s.host = h
}

// leaveHost takes a session out of its address's count; b.mu is held.
func (b *Broker) leaveHost(s *Session) {
	if s.host.sessions--; s.host.sessions == 0 {
		delete(b.hosts, s.host.name)
	}
}

// moveTo notes where the client of a session that it had before comes from now.
func (b *Broker) moveTo(s *Session, host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions[s.id] != s || s.host.name == host {
		return
	}
	b.leaveHost(s)
	b.enterHost(s, host)
}

// endOldest ends the sessions of an address that are away with nothing queued,
// the longest away first, up to endedAtOnce of them, or one if the address has few.
func (b *Broker) endOldest(t *Turn, host string) {
	b.mu.Lock()
	var sessions []*Session
	for _, s := range b.sessions {
		if s.host.name == host {
			sessions = append(sessions, s)
		}
	}
	b.mu.Unlock()
	type candidate struct {
		session *Session
		away    int64
	}
	var idle []candidate
	for _, s := range sessions {
		s.mu.Lock()
		if s.idleAway() {
			idle = append(idle, candidate{s, s.away})
		}
		s.mu.Unlock()
	}
	slices.SortFunc(idle, func(x, y candidate) int { return cmp.Compare(x.away, y.away) })
	for _, c := range idle[:min(len(idle), max(1, min(endedAtOnce, len(sessions)/100)))] {
		if b.endSessionIf(t, c.session, c.session.idleAway) {
			b.stats.SessionsDisplaced.Add(1)
			b.log.Info("ending a session to make room for another: its client is away and nothing is queued for it", "client", c.session.id, "address", host)
		}
	}
}

// idleAway says whether the client is away and the session holds nothing that was
// acknowledged; s.mu is held.
func (s *Session) idleAway() bool {
	return s.conn == nil && s.away != 0 && s.routed.messages == 0 && s.direct.messages == 0 && len(s.received) == 0
}
