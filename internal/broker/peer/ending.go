package peer

import (
	"context"
	"log/slog"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Ending says why a connection ended, for the log.
type Ending struct {
	By     EndedBy
	Code   mqtt.ReasonCode // of a DISCONNECT, sent or received
	Reason string
}

type EndedBy string

const (
	ByClient  EndedBy = "client"  // sent a DISCONNECT
	byServer  EndedBy = "server"  // ended the connection
	ByNetwork EndedBy = "network" // lost it, or the client closed it without a DISCONNECT
)

// NoteEnding keeps the first reason that is given.
func (p *Peer) NoteEnding(e Ending) { p.ended.CompareAndSwap(nil, &e) }

// LogConnected writes the line of a client that has connected. checked: its credentials
// were, and it belongs to owner.
func (p *Peer) LogConnected(connect *mqtt.Connect, present, checked bool, owner string) {
	if !p.Env.Log.Enabled(context.Background(), slog.LevelInfo) { // or the arguments would be garbage
		return
	}
	args := []any{"client", p.Client, "remote", p.Remote(), "version", byte(p.Protocol), "session_present", present}
	if !checked && (connect.HasUsername || connect.HasPassword) {
		args = append(args, "user", string(connect.Username), "credentials", "not checked")
	}
	if owner != "" {
		args = append(args, "owner", owner)
	}
	p.Env.Log.Info("client connected", args...)
}

// LogEnded writes the line of a client whose connection has ended.
func (p *Peer) LogEnded() {
	if !p.Env.Log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	e := p.ended.Load()
	if e == nil {
		e = &Ending{By: byServer, Reason: "the connection failed"}
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
