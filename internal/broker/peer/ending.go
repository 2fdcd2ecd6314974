package peer

import (
	"context"
	"log/slog"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/events"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Ending says why a connection ended, for the log.
type Ending struct {
	By     EndedBy
	Code   mqtt.ReasonCode // of a DISCONNECT, sent or received
	Reason string
}

var connectionFailed = Ending{By: byServer, Code: mqtt.UnspecifiedError, Reason: "the connection failed"}

type EndedBy string

const (
	ByClient  EndedBy = "client"  // sent a DISCONNECT
	byServer  EndedBy = "server"  // ended the connection
	ByNetwork EndedBy = "network" // lost it, or the client closed it without a DISCONNECT
)

// NoteEnding keeps the first reason that is given.
func (p *Peer) NoteEnding(e Ending) { p.ended.CompareAndSwap(nil, &e) }

// event is the client as events show it; connect is nil when its connection ends.
func (p *Peer) event(connect *mqtt.Connect, id *access.Identity) events.Client {
	c := events.Client{ID: p.Client, Identity: id, Remote: p.Transport.RemoteAddr(), Protocol: p.Protocol, KeepAlive: p.KeepAlive, Since: p.Since}
	if connect != nil {
		c.Username, c.KeepAlive, c.CleanStart = connect.Username, connect.KeepAlive, connect.CleanStart
	}
	return c
}

// TellRefused publishes the event that a client was refused.
func (p *Peer) TellRefused(connect *mqtt.Connect, id *access.Identity, code mqtt.ReasonCode, reason string) {
	c := p.event(connect, id)
	p.Env.Events.Refused(&c, code, reason)
}

// LogConnected writes the line of a client that has connected, and publishes the event.
// checked: its credentials were.
func (p *Peer) LogConnected(connect *mqtt.Connect, present, checked bool, id *access.Identity) {
	c := p.event(connect, id)
	c.KeepAlive = p.KeepAlive
	p.Env.Events.Connected(&c, present, connect.SessionExpiry)
	if !p.Env.Log.Enabled(context.Background(), slog.LevelInfo) { // or the arguments would be garbage
		return
	}
	args := []any{"client", p.Client, "remote", p.Remote(), "version", byte(p.Protocol), "session_present", present}
	if !checked && (connect.HasUsername || connect.HasPassword) {
		args = append(args, "user", string(connect.Username), "credentials", "not checked")
	}
	if owner := id.OwnedBy(); owner != "" {
		args = append(args, "owner", owner)
	}
	p.Env.Log.Info("client connected", args...)
}

// LogEnded writes the line of a client whose connection has ended, and publishes the event.
func (p *Peer) LogEnded(id *access.Identity) {
	e := p.ended.Load()
	if e == nil {
		e = &connectionFailed
	}
	c := p.event(nil, id)
	p.Env.Events.Disconnected(&c, string(e.By), e.Code, e.Reason)
	if !p.Env.Log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	args := []any{"client", p.Client, "remote", p.Remote(), "by", string(e.By)}
	switch {
	case e.By == ByNetwork:
	case e.Code == mqtt.NormalDisconnection: // which is also called Success
		args = append(args, "code", "Normal disconnection")
	default:
		args = append(args, "code", e.Code)
	}
	if e.Reason != "" {
		args = append(args, "reason", e.Reason)
	}
	p.Env.Log.Info("client disconnected", args...)
}
