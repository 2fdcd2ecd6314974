// Package hosts counts the sessions of each client address, and keeps those whose client
// is away in the order in which they left. The broker asks it which session makes room
// when there is no room for another: every answer takes a few steps, however many
// sessions and addresses there are.
//
// It never locks: the caller holds one lock around every call.
package hosts

import (
	"container/heap"
	"container/list"
)

// Hosts are the addresses that have sessions; S is a pointer to a session.
type Hosts[S any] struct {
	byName map[string]*host[S]
	sizes  sizes[S]
}

// host is one address.
type host[S any] struct {
	name     string
	sessions int
	index    int       // in sizes
	away     list.List // of S: the longest away first
}

// Place is where a session stands; the session has it.
type Place[S any] struct {
	host *host[S]
	away *list.Element // in host.away; nil: its client is connected
}

// New has no sessions.
func New[S any]() *Hosts[S] {
	return &Hosts[S]{byName: make(map[string]*host[S])}
}

// Sessions is how many sessions an address has.
func (hs *Hosts[S]) Sessions(name string) int {
	if h := hs.byName[name]; h != nil {
		return h.sessions
	}
	return 0
}

// Most is the address with most sessions.
func (hs *Hosts[S]) Most() string {
	if len(hs.sizes) == 0 {
		return ""
	}
	return hs.sizes[0].name
}

// Enter counts a session with an address; p is the session's place, and not taken.
func (hs *Hosts[S]) Enter(p *Place[S], name string) {
	h := hs.byName[name]
	if h == nil {
		h = &host[S]{name: name}
		hs.byName[name] = h
		heap.Push(&hs.sizes, h)
	}
	h.sessions++
	heap.Fix(&hs.sizes, h.index)
	p.host = h
}

// Leave undoes Enter, and Away.
func (hs *Hosts[S]) Leave(p *Place[S]) {
	hs.Back(p)
	h := p.host
	p.host = nil
	if h.sessions--; h.sessions > 0 {
		heap.Fix(&hs.sizes, h.index)
		return
	}
	heap.Remove(&hs.sizes, h.index)
	delete(hs.byName, h.name)
}

// Move counts a session with another address than before, where it is the last to have
// left if its client is away.
func (hs *Hosts[S]) Move(p *Place[S], name string) {
	if p.host.name == name {
		return
	}
	away := p.away
	hs.Leave(p)
	hs.Enter(p, name)
	if away != nil {
		hs.Away(p, away.Value.(S))
	}
}

// Away notes that the client of a session, whose place p is, has left now. A session
// without an address has ended, and stays out.
func (hs *Hosts[S]) Away(p *Place[S], session S) {
	if p.host != nil && p.away == nil {
		p.away = p.host.away.PushBack(session)
	}
}

// Back notes that the client of a session has come back.
func (hs *Hosts[S]) Back(p *Place[S]) {
	if p.away != nil {
		p.host.away.Remove(p.away)
		p.away = nil
	}
}

// Next gives the session of an address whose client is away longest, and puts it behind
// the others that are away: goroutines that look for a session at the same time get
// different ones, and a session that may not end isn't looked at again before them.
func (hs *Hosts[S]) Next(name string) (session S, any bool) {
	h := hs.byName[name]
	if h == nil || h.away.Len() == 0 {
		return session, false
	}
	first := h.away.Front()
	h.away.MoveToBack(first)
	return first.Value.(S), true
}

// sizes is a heap of addresses, the one with most sessions first.
type sizes[S any] []*host[S]

func (s sizes[S]) Len() int           { return len(s) }
func (s sizes[S]) Less(i, j int) bool { return s[i].sessions > s[j].sessions }
func (s sizes[S]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *sizes[S]) Push(x any) {
	h := x.(*host[S])
	h.index = len(*s)
	*s = append(*s, h)
}

func (s *sizes[S]) Pop() any {
	old := *s
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return h
}
