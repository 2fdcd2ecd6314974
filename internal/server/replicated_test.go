package server

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
)

// The data of a node is that of its cluster: a server by itself does not start on it, and the
// commands that know only a server's log leave it alone.
func TestClusterDataIsRefused(t *testing.T) {
	t.Parallel()
	cfg := Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, t.TempDir()
	dir := filepath.Join(cfg.DataDir, identity.Dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (&identity.Identity{Name: "a", ID: 1, Cluster: 5}).Write(vfs.Default, dir); err != nil {
		t.Fatal(err)
	}
	_, started := Start(cfg)
	_, checked := Check(cfg, nil)
	_, salvaged := Salvage(cfg, filepath.Join(t.TempDir(), "new"), nil, nil)
	for what, err := range map[string]error{"start": started, "check": checked, "salvage": salvaged} {
		if !errors.Is(err, errClusterData) {
			t.Errorf("%s: %v, want %v", what, err, errClusterData)
		}
	}
}
