package main

import (
	"context"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// awayCluster is a cluster of three programs.
type awayCluster struct {
	t       *testing.T
	peers   []string
	addrs   map[string]string // for clients
	dirs    map[string]string
	running map[string]*process.Process
	flags   func(name string) []string // of a node besides those that all have; nil: none
}

// newAwayCluster has nodes of these names, which do not run yet.
func newAwayCluster(t *testing.T, names ...string) *awayCluster {
	t.Helper()
	c := &awayCluster{t: t, addrs: map[string]string{}, dirs: map[string]string{}, running: map[string]*process.Process{}}
	for _, name := range names {
		c.peers = append(c.peers, name+"="+testserver.FreeAddress())
		c.addrs[name], c.dirs[name] = testserver.FreeAddress(), t.TempDir()
	}
	return c
}

// startAll starts nodes, and waits until they take clients.
func (c *awayCluster) startAll(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.start(name)
	}
	for _, name := range names {
		if err := c.running[name].AwaitReady(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// lead has a node lead.
func (c *awayCluster) lead(name string) {
	c.t.Helper()
	c.until(name, "node "+name+" leads", func(r *control.Report) bool {
		if r.Leader != name {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_ = control.Transfer(ctx, c.dirs[name], name) // another one may be elected meanwhile
		}
		return r.Leader == name
	})
}

func (c *awayCluster) start(name string) {
	c.t.Helper()
	args := []string{"serve", "--node", name, "--listen", c.addrs[name], "--data", c.dirs[name],
		"--cluster-peers", strings.Join(c.peers, ","), "--cluster-log-keep", "1MiB", "--cluster-election-timeout", "5s"}
	if c.flags != nil {
		args = append(args, c.flags(name)...)
	}
	p, err := process.Start(exec.Command(testserver.Binary(), args...), regexp.MustCompile("holdfast listening on"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.running[name] = p
	c.t.Cleanup(func() {
		p.Kill()
		if c.t.Failed() {
			c.t.Logf("node %s:\n%s", name, p.Output())
		}
	})
}

// until waits until a node's view of the cluster is as wanted.
func (c *awayCluster) until(name, what string, is func(r *control.Report) bool) (r control.Report) {
	c.t.Helper()
	for end := time.Now().Add(2 * patience); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		r, err := control.Status(ctx, c.dirs[name])
		cancel()
		if err == nil && is(&r) {
			return r
		}
		if time.Now().After(end) {
			c.t.Fatalf("not in time: %s; node %s says %+v, %v", what, name, r, err)
		}
	}
}

// logBytes is what a node's log takes on the disk.
func (c *awayCluster) logBytes(name string) (n int64) {
	c.t.Helper()
	_ = filepath.WalkDir(filepath.Join(c.dirs[name], "cluster", "raft"), func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // it is being removed
		}
		if info, err := e.Info(); err == nil && !e.IsDir() {
			n += info.Size()
		}
		return nil
	})
	return n
}

// A node is killed, more is written than the others keep of the log, and it is started again: it
// gets all data, is told so, and can lead with all of it.
func TestNodeThatWasAwayGetsAllData(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c"}
	c := newAwayCluster(t, names...)
	c.startAll(names...)
	leader := c.until("a", "a leader, and no node is missing", func(r *control.Report) bool { return r.Leader != "" && len(r.Missing) == 0 }).Leader
	away := "a"
	if away == leader {
		away = "b"
	}

	// An operator who asks a node that does not lead for a trace is told which one does.
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) { // another one may be elected meanwhile
		got := start(t, exec.Command(binary, "trace", "--client", "x", "--for", "1ms", "--data", c.dirs[away]), nil)
		if want := fmt.Sprintf("node %s does not lead its cluster: run this command on node ", away); strings.Contains(got.err, want) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a trace on node %s: %+v, want %q", away, got, want)
		}
	}

	// Given a node that is killed, while much is written:
	c.running[away].Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	writer, err := client.Dial(ctx, c.addrs[leader])
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	const valueBytes, wholeLog = 128 << 10, 40 << 20
	value := func(i int) string { return fmt.Sprint(i, ":") + strings.Repeat("x", valueBytes) }
	written := 0
	for written*valueBytes < wholeLog || c.logBytes(leader) > wholeLog*3/4 {
		if _, err := writer.Set(ctx, fmt.Sprintf("key/%d", written), []byte(value(written)), client.RetryWrites()); err != nil {
			t.Fatal(err)
		}
		written++
	}

	// when it is started again,
	c.start(away)
	if err := c.running[away].AwaitReady(); err != nil {
		t.Fatal(err)
	}
	c.until(leader, "the node that was away has all entries", func(r *control.Report) bool {
		for _, line := range r.Nodes {
			if line.Name == away {
				return line.Role == "follower" && line.Lag == 0 && line.Term > 0
			}
		}
		return false
	})
	const said = "this node has all data of the leader"
	if out := c.running[away].Output(); !strings.Contains(out, said) {
		t.Errorf("node %s does not say %q", away, said)
	}

	// then it can lead, with everything.
	for c.until(leader, "a leader", func(r *control.Report) bool { return r.Leader != "" }).Leader != away {
		_ = control.Transfer(ctx, c.dirs[leader], away) // another may have been elected
		if ctx.Err() != nil {
			t.Fatalf("node %s does not lead", away)
		}
	}
	reader, err := client.Dial(ctx, c.addrs[away])
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for i := range written {
		v, found, err := reader.Get(ctx, fmt.Sprintf("key/%d", i))
		if err != nil || !found || string(v.Bytes) != value(i) {
			t.Fatalf("key %d: %d bytes, found %v, %v", i, len(v.Bytes), found, err)
		}
	}
}
