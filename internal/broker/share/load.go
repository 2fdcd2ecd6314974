package share

import (
	"errors"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Durable implements journal.Waiter: it evicts messages that are on disk now, and passes on
// those that had to wait for a transaction's batch.
func (g *Group) Durable(batch journal.Seq) {
	g.Mu.Lock()
	held := g.OnDisk(batch)
	g.Mu.Unlock()
	if !held {
		return
	}
	t := g.env.LockDeferred()
	defer g.env.UnlockDeferred()
	g.passOn(t)
}

// mayLoad says whether the caller is to read messages from the disk: a member would take
// them, or the oldest are to be dropped, and no other goroutine reads them.
func (g *Group) mayLoad(t *session.Turn) bool {
	taken := g.anyWithRoom(t)
	g.Mu.Lock()
	defer g.Mu.Unlock()
	dropped := g.WhenFull() == limits.DropOldest && g.Overfull()
	begin := g.Lacks() && (taken || dropped)
	g.Loading = g.Loading || begin
	return begin
}

// loadInBackground reads the next page on a goroutine of its own.
func (g *Group) loadInBackground() {
	if !g.env.Background(func(t *session.Turn) {
		if g.loadMessages(t) {
			g.Dispatch(t)
		}
	}) {
		g.loaded() // the server stops
	}
}

// loaded notes that no goroutine reads messages any more.
func (g *Group) loaded() {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.Loading = false
	g.Evict()
}

// loadMessages reads the next page of the backlog, after mayLoad, and says whether it
// could.
func (g *Group) loadMessages(t *session.Turn) bool {
	g.Mu.Lock()
	p, any := g.NextPage()
	g.Mu.Unlock()
	if !any {
		g.loaded()
		return true
	}
	found, whole, err := g.env.Pages.Read(&p)
	if errors.Is(err, journal.ErrClosed) {
		g.loaded() // the server stops; no client misses anything
		return false
	}
	if err != nil {
		g.notLoaded(err)
		return false
	}
	filled := g.fill(t, &p, found, whole)
	g.env.Commit(t, nil)
	return filled
}

// notLoaded closes the connections of the members of a group whose backlog could not
// be read for the moment: its messages stay.
func (g *Group) notLoaded(err error) {
	g.loaded()
	g.env.Log.Error("cannot read the backlog of a shared subscription", "subscription", g.Key, "error", err)
	for _, m := range *g.members.Load() {
		m.Session.Mu.Lock()
		c := m.Session.Peer
		m.Session.Mu.Unlock()
		if c != nil {
			c.Disconnect(mqtt.UnspecifiedError, "the backlog of a shared subscription could not be read")
		}
	}
}

// fill adds loaded messages to the backlog. If one is missing or cannot be decoded, it ends
// the sessions of all members, whose clients must not miss a message without notice, and
// returns false.
func (g *Group) fill(t *session.Turn, p *queue.Page, found []queue.Loaded, whole bool) bool {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	defer queue.Release(found)
	g.Loading = false
	if g.Ended {
		return false
	}
	if hole := g.Fill(p, found, whole); hole != "" {
		g.env.Log.Error("ending the sessions of a shared subscription because its backlog on disk has a hole", "subscription", g.Key, "problem", hole)
		for _, m := range *g.members.Load() {
			t.EndSession(m.Session)
		}
		return false
	}
	g.Shed(&t.Deletes)
	return true
}
