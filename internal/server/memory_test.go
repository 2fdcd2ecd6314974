package server_test

import (
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func TestMaximumOfMemoryThatIsTooSmallIsRefused(t *testing.T) {
	t.Parallel()
	cfg := server.Default()
	cfg.DataDir = t.TempDir()
	cfg.MaxMemory = memory.MinMaximum - 1
	if s, err := server.Start(cfg); err == nil || !strings.Contains(err.Error(), "128 MiB") {
		if err == nil {
			_ = s.Shutdown(t.Context())
		}
		t.Fatalf("a server with less memory than it needs itself: %v; want an error that says how much it needs", err)
	}
}
