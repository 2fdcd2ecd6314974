package server

import (
	"cmp"
	"os"

	"github.com/holdfast-mqtt/holdfast/internal/auth"
	"github.com/holdfast-mqtt/holdfast/internal/auth/throttle"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/relay"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/spans"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// WithDefaults is the configuration with its default in place of each zero field that has
// one, on every machine the same. Fields that follow from the machine stay zero.
func (c Config) WithDefaults() Config {
	c.TLS.MinVersion = cmp.Or(c.TLS.MinVersion, "1.2")
	c.TLS.ClientAuth = cmp.Or(c.TLS.ClientAuth, certs.Required)
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, sockets.DefaultMaxHandshakes)
	c.Login.TLSIdentity = cmp.Or(c.Login.TLSIdentity, auth.CommonName)
	c.Login.LoginBurst = cmp.Or(c.Login.LoginBurst, auth.DefaultBurst)
	c.Login.LoginPause = cmp.Or(c.Login.LoginPause, auth.DefaultPause)
	c.Login.Webhook = c.Login.Webhook.WithDefaults()
	c.Cluster.Reads = cmp.Or(c.Cluster.Reads, settings.Lease)
	c.Cluster.Election = cmp.Or(c.Cluster.Election, node.DefaultElection)
	c.Cluster.LogKeep = cmp.Or(c.Cluster.LogKeep, node.DefaultLogKeep)
	c.Cluster.SnapshotRate = cmp.Or(c.Cluster.SnapshotRate, node.DefaultSnapshotRate)
	c.Cluster.RelayMemory = cmp.Or(c.Cluster.RelayMemory, relay.DefaultMaxBuffered)
	c.Spans.Queue = cmp.Or(c.Spans.Queue, spans.DefaultQueue)
	c.Spans.Keys = cmp.Or(c.Spans.Keys, spans.HashedKey)
	c.MaxKeySize = cmp.Or(c.MaxKeySize, protocol.DefaultMaxKey)
	c.MaxKeys = cmp.Or(c.MaxKeys, engine.DefaultMaxKeys)
	c.MaxStoreBytes = cmp.Or(c.MaxStoreBytes, engine.DefaultMaxBytes)
	c.MaxRemember = cmp.Or(c.MaxRemember, engine.DefaultMaxRemember)
	c.Remember = cmp.Or(c.Remember, min(engine.DefaultRemember, c.MaxRemember))
	c.MaxWatches = cmp.Or(c.MaxWatches, engine.DefaultMaxWatches)
	c.MaxWatchBytes = cmp.Or(c.MaxWatchBytes, engine.DefaultMaxWatchBytes)
	c.MaxScans = cmp.Or(c.MaxScans, engine.DefaultMaxScans)
	c.MaxTxnOperations = cmp.Or(c.MaxTxnOperations, protocol.DefaultMaxTxnOperations)
	c.Limits = c.Limits.WithDefaults()
	return c
}

// OnThisMachine is WithDefaults, with what follows from the machine's memory, its
// processors and the limit of open files. What follows from the disk stays zero: it is
// known when the data directory is open.
func (c Config) OnThisMachine() Config {
	if c.MaxMemory == 0 {
		c.MaxMemory, _, _ = memory.Maximum(os.DirFS("/"))
	}
	if c.MaxMemory > 0 {
		c.MaxHandshakes = handshakesWithin(c.MaxHandshakes, memory.PoolOf(c.MaxMemory))
	}
	c.Login.MaxChecks = cmp.Or(c.Login.MaxChecks, throttle.Places())
	if limit, known := sockets.DescriptorLimit(); known {
		if d, err := divide(limit); err == nil && d.connections > 0 {
			c.Limits.MaxConnections = min(cmp.Or(c.Limits.MaxConnections, limits.Default().MaxConnections), d.connections)
		}
	}
	return c.WithDefaults()
}
