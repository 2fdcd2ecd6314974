package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/clustered"
	"github.com/holdfast-mqtt/holdfast/internal/clustered/clusteredtest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// patience is how long the test waits for what must happen.
const patience = 2 * time.Minute

// unusedAddress is one of the loopback interface on which nothing listens.
func unusedAddress(t *testing.T) string {
	t.Helper()
	address, err := process.UnusedAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// recoverWith runs the command with what a person, or a pipe, answers.
func recoverWith(ctx context.Context, in io.Reader, args ...string) (string, error) {
	cmd := NewCommand()
	var out bytes.Buffer
	cmd.SetIn(in)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{"recover"}, args...))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// Of three nodes two are lost for good. The third becomes a cluster of its own only after its cluster's ID was given, or
// with --yes; it has everything that was acknowledged, and needs no second recovery.
func TestRecover(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	names := []string{"a", "b", "c"}
	dirs, addresses, peers, nodes := map[string]string{}, map[string]string{}, []string(nil), map[string]*clustered.Node{}
	for _, name := range names {
		dirs[name], addresses[name] = t.TempDir(), unusedAddress(t)
		peers = append(peers, name+"="+unusedAddress(t))
	}
	run := func(names ...string) {
		t.Helper()
		var starting []clusteredtest.Node
		for _, name := range names {
			starting = append(starting, clusteredtest.Node{Name: name, Dir: dirs[name], Listen: addresses[name]})
		}
		maps.Copy(nodes, clusteredtest.Start(ctx, t, peers, starting...))
	}
	dial := func(name string) *client.Client {
		t.Helper()
		for {
			c, err := client.Dial(ctx, addresses[name])
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
				return c
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	run(names...)
	writer := dial("a")
	for i := range 100 {
		if _, err := writer.Set(ctx, fmt.Sprint("key/", i), []byte("value"), client.RetryWrites()); err != nil {
			t.Fatal(err)
		}
	}
	survivor := ""
	for survivor == "" {
		if r, err := control.Status(ctx, dirs["a"]); err == nil {
			survivor = r.Leader
		}
		if ctx.Err() != nil {
			t.Fatal("no node leads")
		}
	}
	data := dirs[survivor]
	refused := func(why string, in io.Reader, want string, args ...string) (said string) {
		t.Helper()
		said, err := recoverWith(ctx, in, args...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", why, err, want)
		}
		return said
	}
	never, _ := io.Pipe()
	refused("a node that runs", never, "in use", "--data", data, "--yes")
	id := nodes[survivor].Status().Cluster.String()
	for _, name := range names {
		grace, cancel := context.WithTimeout(ctx, 10*time.Second)
		if err := nodes[name].Shutdown(grace); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	refused("no directory", never, "not that of a cluster's node", "--data", filepath.Join(t.TempDir(), "nothing"), "--yes")
	refused("an empty directory", never, "not that of a cluster's node", "--data", t.TempDir(), "--yes")
	refused("an argument", never, "unexpected argument", survivor)

	// What is kept, and what may be lost, is said before the question.
	others := strings.Join(strings.Fields(strings.ReplaceAll("a b c", survivor, "")), ", ")
	asks := regexp.MustCompile(`^Node ` + survivor + ` of the cluster ` + id + `, with the other nodes ` + others + `\.
Its log ends with entry (\d+), written in term \d+\. It knows entries up to \d+ to be committed\.
All of these are kept\. Lost is whatever the cluster has acknowledged after entry (\d+)\.
To make a new cluster of it, type ` + id + `: $`)
	for answer, want := range map[string]string{
		"":                             "the input ended without an answer: with --yes the command does not ask",
		"\n":                           "not confirmed: nothing was changed",
		"yes\n":                        "not confirmed: nothing was changed",
		survivor + "\n":                "not confirmed: nothing was changed",
		id[1:] + "\n":                  "not confirmed: nothing was changed",
		strings.Repeat(" ", 2000) + id: "not confirmed: nothing was changed", // no more than a line is read
		strings.Repeat("y", 2000):      "not confirmed: nothing was changed",
		"no\n" + id + "\n":             "not confirmed: nothing was changed",
	} {
		said := refused(fmt.Sprintf("%.20q", answer), strings.NewReader(answer), want, "--data", data)
		if m := asks.FindStringSubmatch(said); m == nil || m[1] != m[2] {
			t.Errorf("it asked\n%s", said)
		}
	}
	interrupted, interrupt := context.WithCancel(ctx)
	interrupt()
	if _, err := recoverWith(interrupted, never, "--data", data); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("interrupted: %v", err)
	}

	// The right answer. It is still the former cluster's ID: nothing was changed before.
	said, err := recoverWith(ctx, strings.NewReader(id+"\n"), "--data", data)
	if err != nil || !strings.HasSuffix(said, "Node "+survivor+" is a cluster of its own. Start it, and add other nodes, with new data directories, by holdfast cluster add.\n") {
		t.Fatalf("%v: %s", err, said)
	}
	refused("a second time", strings.NewReader(id+"\n"), "the node is the only one of its cluster, and needs no others: start node "+survivor, "--data", data)
	refused("a second time, unasked", never, "the node is the only one of its cluster", "--data", data, "--yes")

	run(survivor)
	reader := dial(survivor)
	for i := range 100 {
		if v, found, err := reader.Get(ctx, fmt.Sprint("key/", i)); err != nil || !found || string(v.Bytes) != "value" {
			t.Fatalf("key %d: %q, %v, %v", i, v.Bytes, found, err)
		}
	}
	if now := nodes[survivor].Status(); now.Cluster.String() == id || len(now.Members) != 1 {
		t.Errorf("the new cluster is %+v", now)
	}

	// Another of the three, unasked.
	other := strings.Split(others, ", ")[0]
	if said, err := recoverWith(ctx, never, "--data", dirs[other], "--yes"); err != nil || strings.Contains(said, "type") {
		t.Errorf("with --yes: %v: %s", err, said)
	}
}
