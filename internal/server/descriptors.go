package server

import (
	"cmp"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// File descriptors
//
// When none is left, the next segment of the log cannot be opened and the process must
// end. So what the process may have open is divided before the first connection comes:
//
//	tables        what Pebble keeps open of them; it closes those it used least
//	own           segments, manifest, flushes and compactions, a backup, listeners,
//	              the control socket
//	clients       up to MaxConnections; then those of principals with the reserve
//	              (Limits.ReservedConnections) and those without a CONNECT
//	              (broker.SpareConnections), handshakes of WebSocket, and sockets that
//	              linger, which nothing counts
//
// MaxConnections follows from the limit, unless it is set to less. What nothing counts
// is held off the rest by the numbers of the sockets' descriptors, which say how many
// are in use (sockets.DescriptorBounds): a few of those left are for clients on this
// machine only, so that an operator gets in. And the journal has a last few open in
// advance (package datadir).
type descriptors struct {
	limit       int // of the process; 0: not known
	tables      int // that Pebble keeps open; 0: its default
	connections int // most for Limits.MaxConnections; 0: any
	bounds      *sockets.DescriptorBounds
}

const (
	ownDescriptors      = 64
	loopbackDescriptors = 16
	minDescriptors      = 128

	// minTables is the least that Pebble works with, usualTables its default; in
	// between it is a share of the limit.
	minTables, usualTables, tablesShare = 74, 1000, 16
)

// divide divides the descriptors of a process that may open limit; 0: not known.
func divide(limit int) (descriptors, error) {
	if limit == 0 {
		return descriptors{}, nil
	}
	if limit < minDescriptors {
		return descriptors{}, fmt.Errorf("this process may open %d files, and needs %d at the least: raise the limit (ulimit -n, or LimitNOFILE= of a service)", limit, minDescriptors)
	}
	d := descriptors{limit: limit, tables: min(max(minTables, limit/tablesShare), usualTables)}
	// With few descriptors the tables have to do with what is left; there are seldom many.
	reserve := ownDescriptors + d.tables
	clients := max(limit-reserve-loopbackDescriptors, limit/2)
	d.connections = max(clients-reserve-broker.SpareConnections, clients/2)
	d.bounds = &sockets.DescriptorBounds{Clients: clients, Loopback: clients + loopbackDescriptors}
	return d, nil
}

// shareDescriptors bounds connections and open tables by what the process may open.
func (s *Server) shareDescriptors() error {
	s.wanted = cmp.Or(s.config.Limits.MaxConnections, limits.Default().MaxConnections)
	limit, known := sockets.DescriptorLimit()
	if !known {
		return nil
	}
	d, err := divide(limit)
	if err != nil {
		return err
	}
	d.bounds.Logger = s.log
	s.descriptors = d
	switch l := &s.config.Limits; {
	case l.MaxConnections > d.connections:
		s.log.Warn("there can be fewer connections than the maximum asked for: the process may open too few files; raise the limit (ulimit -n, or LimitNOFILE= of a service)",
			"asked_for", l.MaxConnections, "maximum", d.connections, "open_files", limit)
		l.MaxConnections = d.connections
	case l.MaxConnections == 0 && d.connections < limits.Default().MaxConnections:
		s.log.Info("the limit of open files bounds connections", "maximum", d.connections, "open_files", limit)
		l.MaxConnections = d.connections
	}
	return nil
}
