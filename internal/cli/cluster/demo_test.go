package cluster

import (
	"strings"
	"testing"
)

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
