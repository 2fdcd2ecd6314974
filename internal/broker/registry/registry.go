package registry

import (
	"hash/maphash"
	"sort"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/principals"
	"github.com/holdfast-mqtt/holdfast/internal/broker/restore"
	"github.com/holdfast-mqtt/holdfast/internal/broker/retained"
	"github.com/holdfast-mqtt/holdfast/internal/broker/routing"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/timers"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Registry holds the sessions of a broker. Its methods are safe for concurrent use.
type Registry struct {
	*routing.Router
	May        access.Permissions // judges a will that is due, and says what a principal may hold; nil: everything is allowed
	Principals *principals.Table

	timers    *timers.Timers
	claims    claims
	steppedMs int64 // FollowClock's: how far the wall clock was stepped forward in all

	mu       lockrank.Mutex[lockrank.Registry]
	sessions byID // guarded by mu
}

// New makes a Registry without sessions, and the Router that finds them.
func New(env *session.Env, kept *retained.Store, may access.Permissions) *Registry {
	r := &Registry{
		May: may, timers: timers.New(), claims: claims{held: make(map[string]chan struct{})},
		sessions:   byID{seed: maphash.MakeSeed()},
		Principals: principals.New(principals.Options{Connections: env.Limits().MaxConnections, Reserve: env.Limits().ReservedConnections, Memory: env.Memory, Now: env.SinceStart}),
	}
	r.Router = routing.New(env, kept, r.All, may)
	env.EndOverflowed = r.endOverflowed
	return r
}

// Restore reads the sessions back that the journal has, with all that belongs to them, and
// sets the bounds of queues by the room on the disk.
func (r *Registry) Restore() error {
	loaded, err := restore.Load(r.Router)
	if err != nil {
		return err
	}
	r.take(loaded)
	r.FitQueues()
	return r.Timers.Load()
}

// Serve ends sessions and publishes delayed wills when they are due, until stop is
// closed.
func (r *Registry) Serve(stop <-chan struct{}) { r.timers.Serve(r.Now, stop) }

// take registers what was on disk, and starts its clocks.
func (r *Registry) take(loaded *restore.Loaded) {
	all := loaded.Sessions
	sort.Slice(all, func(i, j int) bool { return all[i].Away < all[j].Away })
	for _, s := range all {
		r.enter(s, s.Owner())
		r.Principals.Away(&s.Place, s)
		s.Mu.Lock()
		r.scheduleExpiry(s)
		s.Mu.Unlock()
	}
	for _, s := range loaded.Delayed {
		s.Mu.Lock()
		r.scheduleWill(s)
		s.Mu.Unlock()
	}
	for _, w := range loaded.Wills {
		r.timers.Add(0, func() {
			r.Do(func(t *session.Turn) { r.publishWill(t, w) })
		})
	}
}

// All gives the sessions that there are from its call until it returns, and some of those
// that begin or end meanwhile.
func (r *Registry) All() []*session.Session {
	all := make([]*session.Session, 0, r.Len())
	for i := range r.sessions.parts {
		r.mu.Lock()
		for _, s := range r.sessions.parts[i] {
			all = append(all, s)
		}
		r.mu.Unlock()
	}
	return all
}

// Lookup gives the session of a client ID, nil if there is none.
func (r *Registry) Lookup(id string) *session.Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions.get(id)
}

// Len is how many sessions there are.
func (r *Registry) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions.len
}
