package server

import (
	"cmp"

	"github.com/holdfast-mqtt/holdfast/internal/broker/autosub"
	"github.com/holdfast-mqtt/holdfast/internal/engine/quota"
)

// Adjustable are the settings that Server.Adjust puts in force, as `holdfast serve` calls
// them.
var Adjustable = []string{
	"max-connections", "max-sessions", "max-sessions-per-address", "max-session-expiry", "max-subscriptions", "max-filter-bytes",
	"max-inflight", "max-inflight-v3", "max-queued-messages", "max-queued-bytes", "max-total-queued-messages", "max-total-queued-bytes",
	"max-queued-memory", "max-notifications", "queue-full", "max-txn-deliveries",
	"auto-subscribe", "max-delay", "max-timers", "max-timer-bytes", "max-timers-per-client", "max-timer-bytes-per-client",
	"max-retained-messages", "max-retained-bytes", "max-retained-per-client", "max-retained-bytes-per-client",
	"max-keys", "max-store-bytes", "max-keys-per-client", "max-key-bytes-per-client", "max-remembered-bytes",
}

// Adjust puts in force what another configuration says of the Adjustable settings, while
// the server runs. What there is beyond a bound that has become lower stays; there can only
// be less of it. What the next message for a queue beyond its bound does is said in package
// routing. What a connection was given when its client connected (its inflight deliveries, the
// session's expiry) stays with it. While the data is being read they are noted, and put in force before clients are
// served. It is safe for concurrent use.
func (s *Server) Adjust(c Config) {
	s.reloading.mu.Lock()
	defer s.reloading.mu.Unlock()
	if s.reloading.broker == nil {
		s.reloading.adjusted = &c
		return
	}
	s.adjust(c)
}

// adjust is Adjust for a server that has its broker; reloading.mu is held.
func (s *Server) adjust(c Config) {
	most := c.Limits.MaxConnections
	c = c.WithDefaults()
	if d := s.descriptors.connections; d > 0 {
		c.Limits.MaxConnections = min(cmp.Or(most, c.Limits.MaxConnections), d)
	}
	s.broker.SetBounds(&c.Limits)
	s.subscribeClients(&c)
	s.engine.SetBounds(quota.Limits{
		Keys: c.MaxKeys, Bytes: c.MaxStoreBytes, ClientKeys: c.MaxClientKeys, ClientBytes: c.MaxClientKeyBytes, Remembered: c.MaxRemembered,
	})
}

// subscribeClients has clients that connect from now on subscribe to what the configuration says.
// Config.Check has found no mistake in it.
func (s *Server) subscribeClients(c *Config) {
	if rules, err := autosub.Parse(c.AutoSubscribe); err == nil {
		s.broker.SetAutomatic(rules)
	}
}
