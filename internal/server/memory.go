package server

import (
	"os"
	"runtime/debug"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// heapInterval is how often Go's memory limit is brought up to date.
const heapInterval = time.Second

// shareMemory makes the pool that is charged with everything that the server holds for
// clients.
func (s *Server) shareMemory() {
	source := "configured"
	s.maximum = s.config.MaxMemory
	if s.maximum == 0 {
		var err error
		if s.maximum, source, err = memory.Maximum(os.DirFS("/")); err != nil {
			s.log.Warn("the memory that the server uses for clients has no common bound: set --max-memory", "reason", err)
			return
		}
	}
	s.memory = memory.NewPool(memory.PoolOf(s.maximum))
	s.log.Debug("memory", "maximum", s.maximum, "because", source, "pool", s.memory.Limit())
	s.boundHeap()
}

// boundHeap sets Go's memory limit to what is left of the maximum besides memory
// outside of Go's heap: the engine's for keys, Pebble's for memtables and cache.
func (s *Server) boundHeap() {
	if s.maximum == 0 || !s.config.OwnProcess || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	outside := int64(journal.OutsideHeap)
	if s.engine != nil {
		outside += s.engine.Stats().OutsideHeap
	}
	limit := max(s.maximum-outside, s.maximum/4)
	if limit != s.heapLimit {
		s.heapLimit = limit
		debug.SetMemoryLimit(limit)
	}
}
