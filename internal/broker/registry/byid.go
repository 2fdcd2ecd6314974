package registry

import (
	"hash/maphash"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
)

// byID finds sessions by their client ID. It is a map in parts, so that a goroutine that
// wants all of 200,000 sessions holds the registry's lock for one part at a time: a
// CONNECT meanwhile waits for some hundred sessions, and not for all.
type byID struct {
	seed  maphash.Seed
	parts [256]map[string]*session.Session // made when the first session comes
	len   int
}

func (m *byID) part(id string) *map[string]*session.Session {
	return &m.parts[maphash.String(m.seed, id)%uint64(len(m.parts))]
}

func (m *byID) get(id string) *session.Session { return (*m.part(id))[id] }

// put adds a session, in place of another one of its name.
func (m *byID) put(s *session.Session) {
	p := m.part(s.ID)
	if *p == nil {
		*p = make(map[string]*session.Session)
	}
	before := len(*p)
	(*p)[s.ID] = s
	m.len += len(*p) - before
}

// remove removes the session of a name, if there is one.
func (m *byID) remove(id string) {
	p := *m.part(id)
	before := len(p)
	delete(p, id)
	m.len += len(p) - before
}
