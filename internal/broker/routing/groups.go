package routing

import (
	"maps"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/share"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// joinGroup makes sub a member of a shared subscription. The session's lock is held.
func (rt *Router) joinGroup(sub *session.Subscription, name, filter string) {
	key := groupKey(name, filter)
	rt.GroupsMu.Lock()
	defer rt.GroupsMu.Unlock()
	g := rt.Groups[key]
	if g == nil {
		g = share.New(rt.Env, key, filter)
		rt.Groups[key] = g
		rt.Filters.Insert(filter, g.Proxy)
		rt.Memory.Charge(memory.Subscriptions, g.MemoryBytes())
	}
	g.Join(sub)
}

// groupKey is what a group is found by.
func groupKey(name, filter string) string { return name + "/" + filter }

// leaveGroup ends a membership; the last one ends the group.
func (rt *Router) leaveGroup(t *session.Turn, sub *session.Subscription) {
	rt.GroupsMu.Lock()
	g := rt.Groups[groupKey(topic.GroupOf(sub.Filter))]
	left := g.Leave(sub)
	if left == 0 {
		delete(rt.Groups, g.Key)
		rt.Filters.Remove(g.Filter, g.Proxy)
		rt.Memory.Credit(memory.Subscriptions, g.MemoryBytes())
		g.Discard() // before there may be a new group of this name, which would share its row
	}
	rt.GroupsMu.Unlock()
	if left > 0 {
		g.TakeBack(t, sub)
	}
}

// groupOf gives the shared subscription that sub, a match, stands for.
func groupOf(sub *session.Subscription) *share.Group { return sub.Group.(*share.Group) }

// Insert makes publishes find the subscription; its session's lock is held.
func (rt *Router) Insert(sub *session.Subscription, group, rest string) {
	rt.Counters.Subscriptions.Add(1)
	if group != "" {
		rt.joinGroup(sub, group, rest)
		return
	}
	rt.Filters.Insert(rest, sub)
}

// Remove makes publishes not find the subscription any more. No lock is held.
func (rt *Router) Remove(t *session.Turn, sub *session.Subscription) {
	rt.Counters.Subscriptions.Add(-1)
	rt.Memory.Credit(memory.Subscriptions, sub.Memory())
	if sub.Group != nil {
		rt.leaveGroup(t, sub)
		return
	}
	rt.Filters.Remove(sub.Filter, sub)
}

// RemoveAll is Remove for subscriptions that were taken out of a session: their replays end
// with them. No lock is held.
func (rt *Router) RemoveAll(t *session.Turn, s *session.Session, subs []*session.Subscription) {
	for _, sub := range subs {
		rt.Remove(t, sub)
	}
	s.Mu.Lock()
	t.Worked += s.Replays.Len() / 64
	dropStale(t, s)
	s.Mu.Unlock()
	if len(t.Deletes) > 0 {
		rt.Commit(t, nil)
	}
}

// Evict has messages leave memory that are on disk as well.
func (rt *Router) Evict() {
	for _, s := range rt.sessions() {
		s.Mu.Lock()
		s.Evict()
		s.Mu.Unlock()
	}
	rt.GroupsMu.Lock()
	groups := slices.Collect(maps.Values(rt.Groups))
	rt.GroupsMu.Unlock()
	for _, g := range groups {
		g.Mu.Lock()
		g.Evict()
		g.Mu.Unlock()
	}
}
