package registry

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// publishWill publishes a will whose time has come; its row goes with that. No lock
// is held.
func (r *Registry) publishWill(t *session.Turn, w *will.Will) {
	if r.May != nil && !r.May.MayPublish(w.Identity, w.Message.Topic()) {
		r.dropWill(t, w)
		return
	}
	if w.Message.ExpiresAt != 0 {
		w.Message.ExpiresAt += r.Now() // it was an interval until now
	}
	o := w.Message.Outgoing()
	o.Quota = access.QuotaOf(r.May, w.Identity)
	defer func() { // from here on, those that have it to deliver or to retain are charged
		o.Done()
		r.Memory.Credit(memory.Sessions, w.Charged)
	}()
	r.Counters.Wills.Add(1)
	with := session.PublishRows{Will: w.Number}
	if _, _, code := r.Publish(t, &o, &with); code.Failed() {
		r.Counters.Rejected.Add(1)
		r.Log.Warn("a will found no room", "topic", string(o.Topic), "delivered", with.Unretained)
		r.Commit(t, &session.PublishRows{Will: w.Number}) // or it would be published after the next start
	}
}

// LeaveWillAs says that the client of connection c is another identity than it was when it
// left the session its will, which is judged by the new one from here on.
func (r *Registry) LeaveWillAs(s *session.Session, c *peer.Peer, id *access.Identity) {
	r.Journal.Admit()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Peer == c && s.Will != nil {
		s.Will.Identity = id
		r.SaveSession(s)
	}
}

// dropWill lets go of a will that its client may not publish any more, with its row.
func (r *Registry) dropWill(t *session.Turn, w *will.Will) {
	r.Counters.WillsUnauthorized.Add(1)
	r.Log.Warn("a will was not published: its client may not publish to the topic any more", "client", w.Message.Publisher, "topic", string(w.Message.Topic()))
	r.Commit(t, &session.PublishRows{Will: w.Number})
	w.Message.Release()
	r.Memory.Credit(memory.Sessions, w.Charged)
}
