package cluster

import (
	"errors"
	"os"
	"os/exec"
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

// The command that starts a node again is one for a shell, and a node that has failed is shown with the reason,
// the last line of its log.
func TestNodeOfTheDemoThatHasEnded(t *testing.T) {
	t.Parallel()
	n := demoNode{log: filepath.Join(t.TempDir(), "a.log"), arguments: []string{"serve", "--data", "/a demo/a"}}
	if got, want := n.command("/bin/holdfast"), "/bin/holdfast serve --data '/a demo/a'"; got != want {
		t.Errorf("the command is %s, want %s", got, want)
	}
	if err := os.WriteFile(n.log, []byte(strings.Repeat("a line before\n", demoReason)+"the reason\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ script, want string }{
		{"exit 2", "exit status 2: the reason"},
		{"exit 0", "exit status 0"},
		{"kill -9 $$", "signal: killed"},
	} {
		n.cmd = exec.Command("sh", "-c", test.script)
		_ = n.cmd.Run()
		if got := n.end(); got != test.want {
			t.Errorf("%s: %q, want %q", test.script, got, test.want)
		}
	}
	n.log += "-none"
	n.cmd = exec.Command("sh", "-c", "exit 2")
	_ = n.cmd.Run()
	if got := n.end(); got != "exit status 2" {
		t.Errorf("without a log: %q", got)
	}
}
