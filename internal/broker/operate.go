package broker

import (
	"math"
	"slices"
	"time"

	"holdfast/internal/mqtt"
)

// What an operator may do with sessions, from any goroutine. None of it needs room
// for a connection or a session.

// SessionInfo is what an operator wants to know of a session.
type SessionInfo struct {
	ClientID      string
	Connected     bool
	Since         time.Time // connected, or away, since then
	Address       string    `json:",omitempty"` // of the connection
	Subscriptions int
	Queued        int   // messages waiting, those under way included
	QueuedBytes   int64 // their bytes
	Expiry        int64 // seconds after its connection; 0: ends with it; -1: never ends
}

// ClientIDs are those of all sessions at this moment, in order.
func (b *Broker) ClientIDs() []string {
	b.mu.Lock()
	ids := make([]string, 0, len(b.sessions))
	for id := range b.sessions {
		ids = append(ids, id)
	}
	b.mu.Unlock()
	slices.Sort(ids)
	return ids
}

// SessionInfo describes a session; ok is false if there is none of that name, or
// its first connection has not been accepted yet.
func (b *Broker) SessionInfo(clientID string) (info SessionInfo, ok bool) {
	s := b.lookup(clientID)
	if s == nil {
		return SessionInfo{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.conn == nil && s.away == 0 {
		return SessionInfo{}, false
	}
	info = SessionInfo{
		ClientID: s.id, Since: time.UnixMilli(s.away), Subscriptions: len(s.subs),
		Queued: s.routed.messages + s.direct.messages, QueuedBytes: s.routed.bytes + s.direct.bytes, Expiry: int64(s.expiry),
	}
	if s.expiry == math.MaxUint32 {
		info.Expiry = -1
	}
	if c := s.conn; c != nil {
		info.Connected, info.Since, info.Address = true, c.since, c.tr.RemoteAddr().String()
	}
	return info, true
}

// Kick disconnects a client (0x98). Its session lives on for its expiry. It says
// false if the client is not connected.
func (b *Broker) Kick(clientID string) bool {
	s := b.lookup(clientID)
	if s == nil {
		return false
	}
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c == nil {
		return false
	}
	c.Disconnect(mqtt.AdministrativeAction, "an operator ended the connection")
	return true
}

// EndSession disconnects a client, if it is connected (0x98), and ends its session
// with all that it holds; its will is published. When it returns that is on disk.
// It says false if there is no such session.
func (b *Broker) EndSession(clientID string) bool {
	// A CONNECT of this client waits, or is waited for.
	b.claims.take(clientID)
	defer b.claims.release(clientID)
	s := b.lookup(clientID)
	if s == nil {
		return false
	}
	s.mu.Lock()
	c, leaving := s.conn, s.detaching
	s.mu.Unlock()
	switch {
	case c != nil:
		c.Disconnect(mqtt.AdministrativeAction, "an operator ended the session")
		c.reader.Wait()
	case leaving != nil:
		leaving.reader.Wait()
	}
	t := b.turn()
	b.endSession(t, s)
	t.end()
	b.waitDurable(b.journal.Last())
	return true
}
