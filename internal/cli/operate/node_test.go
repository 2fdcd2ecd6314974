package operate

import (
	"bytes"
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/clustered/clusteredtest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// patience is how long the test waits for what must happen.
const patience = 2 * time.Minute

// run runs a command.
func run(t *testing.T, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// Each node of a cluster says how it is, and makes backups. Sessions are the leader's: another node
// says which one that is.
func TestCommandsOnTheNodesOfACluster(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	names := []string{"a", "b"}
	dirs, addresses, peers := map[string]string{}, map[string]string{}, []string(nil)
	for _, name := range names {
		address, err := process.UnusedAddress()
		if err != nil {
			t.Fatal(err)
		}
		dirs[name], addresses[name] = t.TempDir(), address
		peers = append(peers, name+"="+address)
	}
	var starting []clusteredtest.Node
	for _, name := range names {
		starting = append(starting, clusteredtest.Node{Name: name, Dir: dirs[name], Listen: "127.0.0.1:0"})
	}
	nodes := clusteredtest.Start(ctx, t, peers, starting...)
	leader, other := "", ""
	for ; leader == ""; time.Sleep(10 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("no node leads")
		}
		for i, name := range names {
			if nodes[name].Server() != nil {
				leader, other = name, names[1-i]
			}
		}
	}
	for _, name := range names {
		for {
			if out, err := run(t, NewHealthCommand(), "--data", dirs[name]); err == nil && out == "ready\n" {
				break
			} else if ctx.Err() != nil {
				t.Fatalf("%s: %q, %v", name, out, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	want := "node " + other + " does not lead its cluster: run this command on node " + leader + ", which does (its address in the cluster is " + addresses[leader] + ")"
	for name, of := range map[string]struct {
		command *cobra.Command
		args    []string
	}{
		"session list":   {NewSessionCommand(), []string{"list", "--data", dirs[other]}},
		"session delete": {NewSessionCommand(), []string{"delete", "x", "--data", dirs[other]}},
	} {
		if out, err := run(t, of.command, of.args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", name, out, err, want)
		}
	}
	for _, name := range names {
		to := filepath.Join(t.TempDir(), "backup")
		out, err := run(t, NewBackupCommand(), to, "--data", dirs[name])
		if want := regexp.MustCompile(`^` + regexp.QuoteMeta(to) + ` holds a backup: \d+ files, .*, by node ` + name + `, up to entry \d+ of its cluster's log\n$`); err != nil || !want.MatchString(out) {
			t.Errorf("a backup by %s: %q, %v", name, out, err)
		}
	}
	if out, err := run(t, NewBackupCommand(), dirs[leader], "--data", dirs[other]); err == nil || !strings.Contains(err.Error(), "nothing is overwritten") {
		t.Errorf("a backup into another node's data: %q, %v", out, err)
	}
	if out, err := run(t, NewSessionCommand(), "list", "--data", dirs[leader]); err != nil {
		t.Errorf("on the leader: %q, %v", out, err)
	}
}
