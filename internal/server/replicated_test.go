package server

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// The data of a node is that of its cluster: a server by itself does not start on it, and the
// commands that know only a server's log leave it alone.
func TestClusterDataIsRefused(t *testing.T) {
	t.Parallel()
	cfg := Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, t.TempDir()
	if err := os.Mkdir(filepath.Join(cfg.DataDir, node.Dir), 0o700); err != nil {
		t.Fatal(err)
	}
	_, started := Start(cfg)
	_, checked := Check(cfg, nil)
	_, salvaged := Salvage(cfg, filepath.Join(t.TempDir(), "new"))
	for what, err := range map[string]error{"start": started, "check": checked, "salvage": salvaged} {
		if !errors.Is(err, errClusterData) {
			t.Errorf("%s: %v, want %v", what, err, errClusterData)
		}
	}
}
