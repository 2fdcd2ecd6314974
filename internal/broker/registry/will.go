package registry

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
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
	with := message.PublishRows{Will: w.Number}
	if _, _, code := r.Publish(t, &o, &with); code.Failed() {
		r.Counters.Rejected.Add(1)
		r.Log.Warn("a will found no room", "topic", string(o.Topic), "delivered", with.Unretained)
		r.Commit(t, &message.PublishRows{Will: w.Number}) // or it would be published after the next start
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
	r.Commit(t, &message.PublishRows{Will: w.Number})
	w.Message.Release()
	r.Memory.Credit(memory.Sessions, w.Charged)
}

// changeWill puts the will of the client's CONNECT, if it has one, in place of the one
// that the session has: the client is back in time [MQTT-3.1.3-9]. It says false, and
// changes nothing, if there is no memory for it; one that takes no more than the old one
// always has its place. s.Mu is held.
func (r *Registry) changeWill(s *session.Session, p *mqtt.Connect) bool {
	var size, old int64
	if s.Will != nil {
		old = s.Will.Charged
	}
	if p.HasWill {
		size = will.Memory(p.Will.Topic, p.Will.Props.Raw, p.Will.Payload)
	}
	if more := size - old; more > 0 && !r.Memory.Take(memory.Sessions, more) {
		return false
	} else if more < 0 {
		r.Memory.Charge(memory.Sessions, more)
	}
	if s.Will != nil {
		s.Will.Message.Release()
		s.Will = nil
	}
	if p.HasWill {
		s.Will = will.New(&p.Will, s.ID, s.OwnerRef())
		s.Will.Charged = size
	}
	return true
}
