package broker

import (
	"context"
	"log/slog"

	"holdfast/internal/mqtt"
)

// ending says why a connection ended, for the log.
type ending struct {
	by     endedBy
	code   mqtt.ReasonCode // of a DISCONNECT, sent or received
	reason string
}

type endedBy string

const (
	byClient  endedBy = "client"  // sent a DISCONNECT
	byServer  endedBy = "server"  // ended the connection
	byNetwork endedBy = "network" // lost it, or the client closed it without a DISCONNECT
)

// noteEnding keeps the first reason that is given.
func (c *Conn) noteEnding(e ending) { c.ending.CompareAndSwap(nil, &e) }

// logConnected writes the line of a client that has connected.
func (c *Conn) logConnected(p *mqtt.Connect, present bool) {
	if !c.b.log.Enabled(context.Background(), slog.LevelInfo) { // or the arguments would be garbage
		return
	}
	args := []any{"client", c.clientID, "remote", c.remote(), "version", byte(c.version), "session_present", present}
	if c.b.auth == nil && (p.HasUsername || p.HasPassword) {
		args = append(args, "user", string(p.Username), "credentials", "not checked")
	}
	c.b.log.Info("client connected", args...)
}

// logEnded writes the line of a client whose connection has ended.
func (c *Conn) logEnded() {
	if !c.b.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	e := c.ending.Load()
	if e == nil {
		e = &ending{by: byServer, reason: "the connection failed"}
	}
	args := []any{"client", c.clientID, "remote", c.remote(), "by", string(e.by)}
	switch {
	case e.by == byNetwork:
	case e.code == mqtt.NormalDisconnection: // which is also called Success
		args = append(args, "code", "Normal disconnection")
	default:
		args = append(args, "code", e.code)
	}
	if e.reason != "" {
		args = append(args, "reason", e.reason)
	}
	c.b.log.Info("client disconnected", args...)
}
