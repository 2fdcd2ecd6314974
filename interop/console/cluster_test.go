package console

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// serveCluster starts three nodes of a program, with these variables in the environment of node a.
func serveCluster(t *testing.T, program string, environment ...string) map[string]*server {
	t.Helper()
	names, nodes, peers := []string{"a", "b", "c"}, map[string]*server{}, []string{}
	for _, name := range names {
		nodes[name] = &server{t: t, dir: filepath.Join(t.TempDir(), "data"), mqtt: freeAddr(t), admin: freeAddr(t)}
		peers = append(peers, name+"="+freeAddr(t))
	}
	for name, s := range nodes {
		s.flags = []string{"--node", name, "--cluster-peers", strings.Join(peers, ",")}
		args := append([]string{"serve", "--data", s.dir, "--listen", s.mqtt, "--admin", s.admin, "--disk-reserve", "1MiB"}, s.flags...)
		cmd := exec.Command(program, args...)
		if name == "a" {
			cmd.Env = append(os.Environ(), environment...)
		}
		p, err := process.Start(cmd, ready)
		if err != nil {
			t.Fatal(err)
		}
		s.process = p
		t.Cleanup(func() { p.Kill() })
	}
	for _, s := range nodes {
		if err := s.process.AwaitReady(); err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

// Each node's page shows the nodes and which one leads; that of a node which follows leads to the
// leader's console, and has the leadership given to another node.
func TestCluster(t *testing.T) {
	alone := serve(t).open("#/cluster")
	alone.shows("main", "This server is by itself")

	nodes := serveCluster(t, binary)
	leader := ""
	for end := time.Now().Add(patience); leader == ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no node leads")
		}
		out, _ := exec.Command(binary, "cluster", "status", "--data", nodes["a"].dir).Output()
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 2 && f[2] == "leader" {
				leader = f[0]
			}
		}
	}
	var others []string
	for name := range nodes {
		if name != leader {
			others = append(others, name)
		}
	}
	p := nodes[others[0]].open("#/cluster")
	p.shows(".verdict.good", "Node "+leader+" leads, and all nodes answer.")
	p.shows("main", "This page is that of node "+others[0]+", which does not lead")
	p.await("it leads to the leader's console", `document.querySelector('main p a')?.href === 'http://`+nodes[leader].admin+`/console/#/cluster'`)
	p.await("three nodes", `document.querySelectorAll('tbody tr').length === 3`)
	t.Run("accessible", func(t *testing.T) {
		axe := axeCore(t)
		p := nodes[others[0]].open("#/cluster")
		p.await("three nodes", `document.querySelectorAll('tbody tr').length === 3`)
		p.click("button", "Let "+others[1]+" lead")
		p.shows("dialog", "Let node "+others[1]+" lead?")
		p.load(axe)
		p.accessible("#/cluster of three nodes")
	})
	p.click("button", "Let "+others[1]+" lead")
	p.shows("dialog", "Let node "+others[1]+" lead?")
	p.click("dialog button", "Let it lead")
	p.shows(".verdict", "Node "+others[1]+" leads")
	nodes[leader].process.Kill()
	p.shows(".verdict.warn", "Missing: "+leader+".")
	p.shows("tbody", "does not answer")
}

// The page names the node whose clock is wrong, and by how much, as the command does.
func TestClusterWithAWrongClock(t *testing.T) {
	program := filepath.Join(t.TempDir(), "holdfast")
	build := exec.Command("go", "build", "-tags", "holdfast_shifted_clock", "-o", program, process.Holdfast)
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	nodes := serveCluster(t, program, "HOLDFAST_TEST_CLOCK_SHIFT_MS=7200000")
	const says = "The clock of node a is 2h0m0s ahead of those of the other nodes. It does not lead as long as another node can: set its clock right."
	p := nodes["b"].open("#/cluster")
	p.await("the page says it", `[...document.querySelectorAll('.verdict.warn')].some((v) => v.textContent === '`+says+`')`)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		out, _ := exec.Command(binary, "cluster", "status", "--data", nodes["b"].dir).CombinedOutput()
		if strings.Contains(string(out), "\n"+says+"\n") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the command says\n%s", out)
		}
	}
	p.shows(".verdict.good", "leads, and all nodes answer.")
	p.picture("wrong-clock")
	t.Run("accessible", func(t *testing.T) {
		axe := axeCore(t)
		p.load(axe)
		p.accessible("#/cluster with a wrong clock")
	})
}
