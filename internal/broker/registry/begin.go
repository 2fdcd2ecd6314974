package registry

import (
	"errors"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// claims lets one CONNECT at a time deal with a client ID.
type claims struct {
	mu   lockrank.Mutex[lockrank.Claims]
	held map[string]chan struct{} // client IDs claimed; the channel, if a goroutine waits for it, is closed at the release
}

// take claims a client ID, once no other goroutine does.
func (cs *claims) take(id string) {
	for {
		cs.mu.Lock()
		released, busy := cs.held[id]
		if !busy {
			cs.held[id] = nil
			cs.mu.Unlock()
			return
		}
		if released == nil {
			released = make(chan struct{})
			cs.held[id] = released
		}
		cs.mu.Unlock()
		<-released
	}
}

func (cs *claims) release(id string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if released := cs.held[id]; released != nil {
		close(released)
	}
	delete(cs.held, id)
}

// Connection is a connection whose CONNECT is to be answered.
type Connection struct {
	*peer.Peer
	Identity *access.Identity // the client's; nil: it has none
	Connect  *mqtt.Connect
	Ack      *mqtt.Connack // gets Session Present
	// Begin is called when the session is the connection's, with its lock held, before any
	// other goroutine sees that.
	Begin func(s *session.Session)
	// Left says whether the client has closed the connection, and sent nothing behind CONNECT.
	Left     func() bool
	TookOver bool // set if another connection ended for this one

	discarded bool // a clean start has ended the session that the client had
}

// Attach gives the connection its session, a new one or the one that the client had, and
// appends CONNACK to its output. A connection that the client still has is closed first,
// and its reader awaited, so that the client's packets take effect in the order sent. The
// error says why the client is to be refused. A session that belongs to another owner is
// left as it is, with its connection and its will. So is the connection that the client
// has if it has closed this one meanwhile: it is the older of the two, whose CONNECT has come
// late, from a node of a cluster that was paused, for example.
func (r *Registry) Attach(t *session.Turn, c *Connection) *mqtt.Error {
	r.claims.take(c.Client)
	err := r.attach(t, c)
	r.claims.release(c.Client) // not deferred: it takes a lock
	return err
}

// attach does the work of Attach; the client's claim is held.
func (r *Registry) attach(t *session.Turn, c *Connection) *mqtt.Error {
	// With the claim held the session of this name gets no other owner.
	if s := r.Lookup(c.Client); s != nil {
		if s.Owner() != c.Identity.OwnedBy() {
			r.Counters.NotOwned.Add(1)
			return &mqtt.Error{Code: mqtt.NotAuthorized, Reason: "the session of this client identifier belongs to another user"}
		}
		s.Mu.Lock()
		connected := s.Peer != nil
		s.Mu.Unlock()
		if connected && c.Left() {
			return &mqtt.Error{Code: mqtt.UnspecifiedError, Reason: "the client has closed this connection, and uses another one"}
		}
	}
	var s *session.Session
	for s == nil {
		if s = r.find(t, c); s == nil {
			return &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: "no room for another session (--max-sessions, --max-sessions-per-address, --max-memory)"}
		}
		switch err := r.begin(t, s, c); {
		case errors.Is(err, errSessionEnded): // meanwhile: its queue overflowed
			s = nil
		case errors.Is(err, errEnding):
			return &mqtt.Error{Code: mqtt.ServerUnavailable, Reason: err.Error()}
		case err != nil:
			if !c.Ack.SessionPresent {
				r.endSession(t, s) // it has never begun
			}
			return &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: err.Error()}
		}
	}
	r.ResumeFeed(t, s)
	s.Mu.Lock()
	shared := s.SharedSubscriptions()
	s.Mu.Unlock()
	for _, sub := range shared {
		sub.Group.Dispatch(t)
	}
	return nil
}

// find gives the session for a CONNECT, or nil if there may be no more. The
// client's claim is held.
func (r *Registry) find(t *session.Turn, c *Connection) *session.Session {
	s := r.takeOver(c)
	if s != nil && c.Connect.CleanStart {
		r.endSession(t, s)
		s, c.discarded = nil, true
	}
	c.Ack.SessionPresent = s != nil
	if s == nil {
		return r.newSession(t, c)
	}
	r.moveTo(s, Principal(s.Owner(), c.Peer))
	return s
}

// Why a session can't begin, or go on, with a connection.
var (
	errSessionEnded = errors.New("the session has ended")
	errEnding       = errors.New("the server is ending")
	errWillMemory   = errors.New("the server has no memory for the will at the moment (--max-memory)")
)

// begin makes c the session's connection: CONNACK leaves when the session is on
// disk, and the end of the one that a clean start discards [MQTT-3.1.2-4], and before anything
// else. After an error the session is as it was.
func (r *Registry) begin(t *session.Turn, s *session.Session, c *Connection) error {
	saved, err := r.saveBegin(s, c)
	if err != nil {
		return err
	}
	if saved == 0 && c.discarded { // otherwise the end is in an earlier batch than what was saved
		saved = r.Journal.Last()
	}
	if saved != 0 {
		t.Flush()
		if !r.WaitDurable(saved) {
			return errEnding
		}
	}

	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended {
		return errSessionEnded
	}
	s.DurableTo = max(s.DurableTo, saved) // although the journal may still be at it
	c.Since = time.Now().UnixMilli()
	c.Transport.Connected()
	c.Begin(s)
	c.Connected.Store(true)
	c.Append("", func(dst []byte, _ string) []byte { return mqtt.AppendConnack(dst, c.Protocol, c.Ack) })
	s.Resume(t, c.Peer)
	return nil
}

// saveBegin stops the clocks of a session whose client is back, gives it what the
// CONNECT says, and journals that.
func (r *Registry) saveBegin(s *session.Session, c *Connection) (saved journal.Seq, err error) {
	p := c.Connect
	s.Lifecycle.Lock()
	defer s.Lifecycle.Unlock()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended {
		return 0, errSessionEnded
	}
	if !r.changeWill(s, p) {
		return 0, errWillMemory
	}
	if s.Will != nil {
		s.Will.Identity = c.Identity
	}
	r.timers.Remove(s.ExpireAt)
	r.timers.Remove(s.WillAt)
	s.ExpireAt, s.WillAt = nil, nil
	s.Expiry, s.Away = p.SessionExpiry, 0
	r.Principals.Back(&s.Place)
	chosen, _ := limits.AskedQueueFull(p.Raw)
	s.ChooseQueueFull(chosen)
	return r.SaveSession(s), nil
}

// takeOver closes the connection that a client has, if any, waits until its reader
// is done, and gives its session, if it outlived that. The client's claim is held.
func (r *Registry) takeOver(c *Connection) *session.Session {
	s := r.Lookup(c.Client)
	if s == nil {
		return nil
	}
	s.Mu.Lock()
	old, leaving := s.Peer, s.Detaching
	s.Mu.Unlock()
	switch {
	case old != nil:
		r.Counters.Takeovers.Add(1)
		c.TookOver = true
		old.TakeOver()
	case leaving != nil:
		// Its client has gone, but its will may not have been published yet, nor the
		// session have ended that was to end with it [MQTT-3.2.2-2].
		leaving.Reader.Wait()
	default:
		return s
	}
	return r.Lookup(c.Client)
}
