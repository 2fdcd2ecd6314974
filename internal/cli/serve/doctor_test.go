package serve

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/clustered/clusteredtest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// The leader of a cluster examines itself. Of another node the machine is examined, and what is said of a machine on
// which nothing runs is not said of it. Both say which nodes are missing.
func TestDoctorOnTheNodesOfACluster(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	names := []string{"a", "b", "c"}
	var peers []string
	var starting []clusteredtest.Node
	dirs, addresses := map[string]string{}, map[string]string{}
	for _, name := range names {
		of := [2]string{}
		for i := range of {
			var err error
			if of[i], err = process.UnusedAddress(); err != nil {
				t.Fatal(err)
			}
		}
		dirs[name], addresses[name] = t.TempDir(), of[1]
		peers = append(peers, name+"="+of[0])
		starting = append(starting, clusteredtest.Node{Name: name, Dir: dirs[name], Listen: of[1]})
	}
	nodes := clusteredtest.Start(ctx, t, peers, starting...)
	doctor := func(name string) (out string) {
		var b bytes.Buffer
		cmd := NewDoctorCommand()
		cmd.SetOut(&b)
		cmd.SetArgs([]string{"--data", dirs[name], "--listen", addresses[name]})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(ctx); err != nil {
			b.WriteString(err.Error())
		}
		return b.String()
	}
	await := func(name string, want string) (out string) {
		t.Helper()
		for so := regexp.MustCompile(want); ; {
			if out = doctor(name); so.MatchString(out) {
				return out
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: no %q in\n%s", name, want, out)
			}
		}
	}
	gone := ""
	for _, name := range names {
		const all = `ok +nodes +all 3 nodes of the cluster answer, and one leads\n`
		leads := `Examined the server that runs on ` + dirs[name] + `\.\n\nok +server +the server serves clients\n`
		follows := `Examined node ` + name + `, which runs on ` + dirs[name] + ` .*\n\nok +server +the node follows, and passes clients on to node [abc]\n`
		out := await(name, "("+leads+"|"+follows+")"+all)
		if strings.HasPrefix(out, "Examined the server") {
			continue
		}
		if strings.Contains(out, "listeners") {
			t.Errorf("the addresses of a node that runs are looked at:\n%s", out)
		}
		gone = name
	}
	if err := nodes[gone].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name != gone {
			await(name, `problem +nodes +missing: `+gone+`\n`)
		}
	}
	await(gone, "Examined this machine, as no server runs on "+dirs[gone])
}
