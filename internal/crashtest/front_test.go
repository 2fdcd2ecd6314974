package crashtest

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Fronts and nodes of two successive versions work together, whichever is newer, by the version that
// both speak, and two of the newer version by theirs: a cluster with fronts is upgraded one after the
// other.
func TestFrontsAndNodesOfTwoVersions(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out what builds another program; a run without -short has it")
	}
	former := testserver.Binary()
	next, err := process.Build(t.TempDir(), process.Holdfast, "-tags", "holdfast_next_level")
	if err != nil {
		t.Fatal(err)
	}
	c, err := nodes.New(former, filepath.Join(t.TempDir(), "a"), []string{"a"}, "--cluster-election-timeout", "2s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Kill(c.Nodes()...) })
	ctx, cancel := context.WithTimeout(t.Context(), clusterPatience)
	defer cancel()
	if err := c.Start(c.Nodes()...); err != nil {
		t.Fatal(err)
	}
	if err := c.Nodes()[0].Probe(ctx); err != nil {
		t.Fatal(err)
	}
	report, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// The steps of an upgrade, and a front that was upgraded too early.
	for i, step := range []struct {
		what, node, front string
		version           int // of the links
	}{
		{"both former", former, former, 2},
		{"a newer front", former, next, 2},
		{"a newer node", next, former, 2},
		{"both newer", next, next, 3},
	} {
		if n := c.Nodes()[0]; n.Program() != step.node {
			if err := n.Replace(step.node); err != nil {
				t.Fatal(err)
			}
		}
		address := testserver.FreeAddress()
		front, err := process.Start(exec.CommandContext(ctx, step.front, "front", "--listen", address, "--cluster-peers", "a="+report.Nodes[0].Address), regexp.MustCompile("listening on"))
		if err == nil {
			err = front.AwaitReady()
		}
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint("key", i)
		cl, err := client.Dial(ctx, address)
		if err == nil {
			_, err = cl.Set(ctx, key, []byte(step.what))
			cl.Close()
		}
		if err != nil {
			t.Fatalf("%s: %v; the front says\n%s", step.what, err, front.Output())
		}
		if !front.Stop(process.Patience) {
			t.Errorf("%s: the front had to be killed", step.what)
		}
		all := regexp.MustCompile(`a front has connected.*`).FindAllString(c.Nodes()[0].Output(), -1)
		if len(all) == 0 || !strings.Contains(all[len(all)-1], fmt.Sprint("version=", step.version)) {
			t.Errorf("%s: want links of version %d, and the node says %q", step.what, step.version, all)
		}
	}
	cl := dialNode(ctx, t, c.Nodes()[0])
	for i := range 4 {
		if _, found, err := cl.Get(ctx, fmt.Sprint("key", i)); !found || err != nil {
			t.Errorf("key%d: %v, %v", i, found, err)
		}
	}
}
