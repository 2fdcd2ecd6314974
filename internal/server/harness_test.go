package server

import (
	"context"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// start runs a server in this process until the test ends: on any port of 127.0.0.1,
// with new data on the real disk, and with the program's defaults, unless change sets
// something else.
func start(tb testing.TB, change ...func(*Config)) *Server {
	tb.Helper()
	cfg := Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, tb.TempDir()
	for _, f := range change {
		f(&cfg)
	}
	s, err := Start(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { stop(tb, s) })
	return s
}

// startIn starts a server on a data directory.
func startIn(tb testing.TB, dir string, change ...func(*Config)) *Server {
	tb.Helper()
	return start(tb, append(change, func(c *Config) { c.DataDir = dir })...)
}

// stop shuts a server down, if it runs.
func stop(tb testing.TB, s *Server) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), mqtttest.Deadline)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		tb.Error(err)
	}
}
