package registry

import (
	"math"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// What an operator may do with sessions, from any goroutine. None of it needs room
// for a connection or a session.

// Info is what an operator wants to know of a session.
type Info struct {
	ClientID      string
	Owner         string `json:",omitempty"` // which principal it belongs to; empty: a client that has not proven who it is
	Connected     bool
	Since         time.Time // connected, or away, since then
	Address       string    `json:",omitempty"` // of the connection
	Subscriptions int
	Queued        int   // messages waiting or inflight
	QueuedBytes   int64 // their bytes
	Expiry        int64 // seconds after its connection; 0: ends with it; -1: never ends
	Link          *Link `json:",omitempty"` // nil: the client is away
}

// Link is what an operator wants to know of a connection.
type Link struct {
	Protocol          mqtt.Version
	KeepAlive         uint16 // seconds; 0: none
	ReceiveMaximum    int32
	Inflight          int32  // messages that were sent and are not acknowledged; at most ReceiveMaximum
	MaximumPacketSize uint32 // bytes; 0: any
	Output            int    // bytes that its socket has not taken yet
}

// ClientIDs are those of All, in order.
func (r *Registry) ClientIDs() []string {
	all := r.All()
	ids := make([]string, len(all))
	for i, s := range all {
		ids[i] = s.ID
	}
	slices.Sort(ids)
	return ids
}

// Info describes a session; ok is false if there is none of that name, or
// its first connection has not been accepted yet.
func (r *Registry) Info(clientID string) (info Info, ok bool) {
	s := r.Lookup(clientID)
	if s == nil {
		return Info{}, false
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended || s.Peer == nil && s.Away == 0 {
		return Info{}, false
	}
	info = Info{
		ClientID: s.ID, Owner: s.Owner(), Since: time.UnixMilli(s.Away), Subscriptions: len(s.Subs),
		Queued: s.Routed.Messages + s.Direct.Messages, QueuedBytes: s.Routed.Bytes + s.Direct.Bytes, Expiry: int64(s.Expiry),
	}
	if s.Expiry == math.MaxUint32 {
		info.Expiry = -1
	}
	if c := s.Peer; c != nil {
		info.Connected, info.Since, info.Address = true, time.UnixMilli(c.Since), c.Transport.RemoteAddr().String()
		info.Link = &Link{Protocol: c.Protocol, KeepAlive: c.KeepAlive, ReceiveMaximum: c.ReceiveMax, Inflight: s.Inflight, MaximumPacketSize: c.MaxPacket, Output: c.Transport.Size()}
	}
	return info, true
}

// IsConnected says whether the client has a connection that counts for a principal.
func (r *Registry) IsConnected(clientID, principal string) bool {
	s := r.Lookup(clientID)
	if s == nil {
		return false
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Peer != nil && Principal(s.Owner(), s.Peer) == principal
}

// Kick disconnects a client (0x98). Its session lives on for its expiry. It says
// false if the client is not connected.
func (r *Registry) Kick(clientID string) bool {
	s := r.Lookup(clientID)
	if s == nil {
		return false
	}
	s.Mu.Lock()
	c := s.Peer
	s.Mu.Unlock()
	if c == nil {
		return false
	}
	c.Disconnect(mqtt.AdministrativeAction, "an operator ended the connection")
	return true
}

// EndSession disconnects a client, if it is connected (0x98), and ends its session
// with all that it holds; its will is published. When it returns true that is on disk.
// It says false if there is no such session, or if the broker ends meanwhile.
func (r *Registry) EndSession(clientID string) bool {
	// A CONNECT of this client waits, or is waited for.
	r.claims.take(clientID)
	ended := r.endByOperator(clientID)
	r.claims.release(clientID) // not deferred: it takes a lock
	return ended
}

// endByOperator does the work of EndSession; the client's claim is held.
func (r *Registry) endByOperator(clientID string) bool {
	s := r.Lookup(clientID)
	if s == nil {
		return false
	}
	s.Mu.Lock()
	c, leaving := s.Peer, s.Detaching
	s.Mu.Unlock()
	switch {
	case c != nil:
		c.Disconnect(mqtt.AdministrativeAction, "an operator ended the session")
		c.Reader.Wait()
	case leaving != nil:
		leaving.Reader.Wait()
	}
	t := r.NewTurn()
	r.endSession(t, s)
	t.End()
	return r.WaitDurable(r.Journal.Last())
}
