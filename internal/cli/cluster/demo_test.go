package cluster

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// A demo does not begin on directories of nodes that run.
func TestADemoWhoseNodesRun(t *testing.T) {
	t.Parallel()
	d := demo{dir: t.TempDir()}
	l, err := datadir.Acquire(vfs.Default, filepath.Join(d.dir, "c", node.Dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.plan(); !errors.Is(err, datadir.ErrLocked) {
		t.Errorf("while a node runs: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	d.nodes = nil
	if err := d.plan(); err != nil {
		t.Errorf("when it has ended: %v", err)
	}
}

// A demo has three addresses for each node, all different, and no port beyond the highest.
func TestAddressesOfTheDemo(t *testing.T) {
	t.Parallel()
	d := demo{dir: t.TempDir()}
	if err := d.plan(); err != nil {
		t.Fatal(err)
	}
	chosen := map[string]bool{}
	for _, n := range d.nodes {
		chosen[n.clients], chosen[n.cluster], chosen[n.console] = true, true, true
	}
	if len(d.nodes) != 3 || len(chosen) != 9 {
		t.Errorf("%d nodes with %d addresses, want 3 with 9: %v", len(d.nodes), len(chosen), chosen)
	}
	for _, port := range []int{-1, demoMaxPort + 1} {
		d := demo{dir: t.TempDir(), port: port}
		if err := d.plan(); err == nil || !strings.Contains(err.Error(), "want 0 to 45000") {
			t.Errorf("--port %d: %v", port, err)
		}
	}
}
