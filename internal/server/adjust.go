package server

import (
	"cmp"

	"github.com/holdfast-mqtt/holdfast/internal/engine/quota"
)

// Adjustable are the settings that Server.Adjust puts in force, as `holdfast serve` calls
// them.
var Adjustable = []string{
	"max-connections", "max-sessions", "max-sessions-per-address",
	"max-retained-messages", "max-retained-bytes", "max-retained-per-client", "max-retained-bytes-per-client",
	"max-keys", "max-store-bytes", "max-keys-per-client", "max-key-bytes-per-client", "max-remembered-bytes",
}

// Adjust puts in force what another configuration says of the Adjustable settings, while
// the server runs. What there is beyond a bound that has become lower stays; there can only
// be less of it. While the data is being read they are noted, and put in force before clients are
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
	s.engine.SetBounds(quota.Limits{
		Keys: c.MaxKeys, Bytes: c.MaxStoreBytes, ClientKeys: c.MaxClientKeys, ClientBytes: c.MaxClientKeyBytes, Remembered: c.MaxRemembered,
	})
}
