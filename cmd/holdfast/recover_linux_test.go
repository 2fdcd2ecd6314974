package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Two of three nodes are destroyed, with all that they had. The third is recovered as a person does it, who types the ID
// that the command asks for, and gets two new nodes. All keys that were acknowledged are there, also on these
// two without it.
func TestTwoOfThreeNodesAreDestroyed(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	ports := map[string]string{"a": "1883", "b": "1884", "c": "1885"}
	between := map[string]string{"a": "7001", "b": "7002", "c": "7003"}
	serve := func(name, with string) *process.Process {
		var peers []string
		for _, n := range strings.Split(with, "") {
			peers = append(peers, n+"=127.0.0.1:"+between[n])
		}
		return p.begin(fmt.Sprintf("holdfast serve --node %[1]s --listen 127.0.0.1:%[2]s --data %[1]s --cluster-peers %[3]s &", name, ports[name], strings.Join(peers, ",")), `holdfast listening on|waiting until this node is added`)
	}
	ready := func(n *process.Process) *process.Process {
		t.Helper()
		if err := n.AwaitReady(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	started := p.started
	for _, name := range []string{"a", "b", "c"} {
		started["--node "+name] = serve(name, "abc")
	}
	for _, n := range started {
		ready(n)
	}
	var leader string
	for leader == "" {
		if r, err := control.Status(ctx, filepath.Join(p.dir, "a")); err == nil {
			leader = r.Leader
		}
		if ctx.Err() != nil {
			t.Fatal("no node leads")
		}
	}
	followers := strings.Split(strings.ReplaceAll("abc", leader, ""), "")
	survivor := followers[1]
	written := 0
	write := func(through string) {
		t.Helper()
		cl, err := client.Dial(ctx, "127.0.0.1:"+p.ports[ports[through]])
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		for range 200 {
			if _, err := cl.Set(ctx, fmt.Sprint("key/", written), fmt.Append(nil, written), client.RetryWrites()); err != nil {
				t.Fatal(err)
			}
			written++
		}
	}

	// With one node gone, what is acknowledged is on the leader and on the survivor. Then the leader is gone.
	write(survivor)
	p.destroy(followers[0])
	write(leader)
	p.destroy(leader)
	if !started["--node "+survivor].Stop(process.Patience) {
		t.Error("the survivor had to be killed")
	}

	// What the person types is the cluster's ID, which the command shows.
	recoverWith := func(typed string) (said string, err error) {
		cmd := p.command(ctx, "holdfast cluster recover --data "+survivor)
		cmd.Stdin = strings.NewReader(typed)
		out, err := cmd.Output()
		return string(out), err
	}
	said, err := recoverWith("yes\n")
	var exit *exec.ExitError
	id := regexp.MustCompile(`To make a new cluster of it, type ([0-9a-f]{16}): $`).FindStringSubmatch(said)
	if id == nil || !errors.As(err, &exit) || !strings.Contains(string(exit.Stderr), "nothing was changed") {
		t.Fatalf("with another answer: %v, and it said\n%s", err, said)
	}
	if said, err := recoverWith(id[1] + "\n"); err != nil || !strings.Contains(said, "Node "+survivor+" is a cluster of its own.") {
		t.Fatalf("%v, and it said\n%s", err, said)
	}

	// Two new nodes have the names and the addresses of those that are gone.
	started["--node "+survivor] = ready(serve(survivor, survivor))
	gone := []string{leader, followers[0]}
	for _, name := range gone {
		started["--node "+name] = ready(serve(name, name+survivor))
		p.run(pageCommand{fmt.Sprintf("holdfast cluster add %s=127.0.0.1:%s --data %s", name, between[name], survivor), []string{"node " + name + " was added"}})
	}
	for {
		r, err := control.Status(ctx, filepath.Join(p.dir, survivor))
		if err == nil && r.Explain() == "" && len(r.Nodes) == 3 && !strings.Contains(fmt.Sprint(r.Nodes), "learner") {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the new nodes are not there: %+v, %v", r, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	started["--node "+survivor].Kill()
	for _, name := range gone {
		var cl *client.Client
		for cl == nil {
			if cl, err = client.Dial(ctx, "127.0.0.1:"+p.ports[ports[name]]); ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		for i := range written {
			if v, found, err := cl.Get(ctx, fmt.Sprint("key/", i)); !found || err != nil || string(v.Bytes) != fmt.Sprint(i) {
				t.Fatalf("node %s: key %d of %d: %q, %v, %v", name, i, written, v.Bytes, found, err)
			}
		}
		cl.Close()
	}
}
