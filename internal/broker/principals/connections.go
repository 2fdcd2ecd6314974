package principals

import "github.com/holdfast-mqtt/holdfast/internal/access"

// When all places for connections are taken, and another client connects:
//
//   - A principal with the reserve gets a place of the reserve, as long as there is one.
//   - Otherwise the principal that has most connections loses one to the newcomer's
//     principal, if it has at least two more than that one: after the exchange it still has
//     as many. So no principal falls below what an equal division gives it, and none takes
//     a connection back from the one that it lost it to: principals come to have equal
//     numbers, and from there on newcomers are refused.
//   - The connection that is lost is the newest of its principal. It is the one by which
//     that principal passed its share; clients that have been connected for longer notice
//     nothing, and when connections of others come and go, the same client is affected each
//     time and not one client after the other.
//
// A client that connects again, while the server has its old connection, does not take a
// place of its own, as the old connection ends for the new one.

// SetMost changes Options.Connections. No connection ends for that: while there are more,
// newcomers get places as when all are taken.
func (t *Table) SetMost(connections int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.o.Connections = connections
}

// ConnectionPlace is one connection's place. The goroutine that reads the connection owns it.
type ConnectionPlace struct {
	connection any
	p          *Principal       // nil: the client is not known yet
	kind       placeKind        // guarded by Table.mu, as all below
	prev, next *ConnectionPlace // in strangers, or in counted of the principal
}

type placeKind byte

const (
	stranger   placeKind = iota // its client is not known; it may make room for another connection
	apart                       // it counts neither as a stranger nor against Options.Connections
	counted                     // it counts against Options.Connections
	inReserve                   // it has a place of the reserve
	tobeClosed                  // it has made room for another, and is to be closed
)

// Arrive gives a place to a connection whose client is not known yet. apart says that it has
// a place that is kept for clients on this machine, and counts for its principal only.
func (t *Table) Arrive(connection any, isApart bool) *ConnectionPlace {
	s := &ConnectionPlace{connection: connection}
	t.mu.Lock()
	defer t.mu.Unlock()
	if isApart {
		s.kind = apart
	} else {
		t.strangers.push(s)
	}
	return s
}

// OldestStranger gives the connection that is there longest and whose client is not known
// yet; the caller closes it to make room for another. nil: there is none.
func (t *Table) OldestStranger() (connection any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.strangers.first
	if s == nil {
		return nil
	}
	t.strangers.remove(s)
	s.kind = tobeClosed
	return s.connection
}

// Why a connection is refused, for the client.
const (
	RefusedAll = "the server has as many connections as it may (--max-connections)"
	RefusedOwn = "this client's principal has as many connections as it may (connections of the policy's quotas)"
)

// Admit counts a connection, whose client is known now, with its principal. replaces says
// that the client has a connection that ends for this one. displaced is the connection that
// the caller must end in favour of it; nil: none. refused says why the connection must go
// itself; empty: it may stay.
func (t *Table) Admit(s *ConnectionPlace, name string, q *access.Quota, replaces bool) (displaced any, refused string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.kind == tobeClosed {
		return nil, RefusedAll
	}
	bound := q.Connections
	if replaces {
		bound *= 2 // each of its clients may have one that goes and one that comes
	}
	p := t.byName[name]
	has, countedOfIt := 0, 0
	if p != nil {
		has, countedOfIt = p.connections, p.counted.len
	}
	if bound > 0 && int64(has) >= bound {
		return nil, RefusedOwn
	}
	kind := s.kind
	if kind == stranger {
		kind = counted
		switch {
		case t.counted < t.o.Connections || replaces:
		case q.Reserve && t.reserved < t.o.Reserve:
			kind = inReserve
		default:
			most := t.byConnections.most()
			if most.Count < countedOfIt+2 {
				return nil, RefusedAll
			}
			displaced = t.displace(t.byName[most.Name])
		}
		t.strangers.remove(s)
	}
	p = t.record(name)
	p.refs++
	p.connections++
	s.p, s.kind = p, kind
	switch kind {
	case counted:
		t.counted++
		p.counted.push(s)
	case inReserve:
		t.reserved++
	}
	t.changed(p)
	return displaced, ""
}

// displace takes its place from the newest connection of a principal; mu is held.
func (t *Table) displace(p *Principal) (connection any) {
	s := p.counted.last
	p.counted.remove(s)
	p.connections--
	s.kind = tobeClosed
	t.counted--
	t.changed(p)
	return s.connection
}

// Depart gives up the place of a connection that is gone.
func (t *Table) Depart(s *ConnectionPlace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := s.p
	switch s.kind {
	case stranger:
		t.strangers.remove(s)
	case counted:
		t.counted--
		p.counted.remove(s)
	case inReserve:
		t.reserved--
	}
	if p != nil {
		p.refs--
		if s.kind != tobeClosed {
			p.connections--
		}
		t.changed(p)
	}
	s.p, s.kind = nil, tobeClosed
}

// Rates is how fast the principal of the connection, which was admitted, publishes.
func (s *ConnectionPlace) Rates() *Rates { return &s.p.rates }

// places is a list of places of connections.
type places struct {
	first, last *ConnectionPlace
	len         int
}

func (l *places) push(s *ConnectionPlace) {
	s.prev, s.next = l.last, nil
	if l.last == nil {
		l.first = s
	} else {
		l.last.next = s
	}
	l.last = s
	l.len++
}

func (l *places) remove(s *ConnectionPlace) {
	if s.prev == nil {
		l.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		l.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
	l.len--
}
