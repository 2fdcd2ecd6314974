package node

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// ends waits until a node has ended with an error.
func (c *cluster) ends(want error, says string) {
	c.t.Helper()
	select {
	case err := <-c.fatal:
		if !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
			c.t.Errorf("it ended with %v; want %v, and %q", err, want, says)
		}
	case <-time.After(patience):
		c.t.Fatalf("no node ends:\n%v", c.log)
	}
}

// A copy of a node's data directory, started at another address, ends: the node whose ID it has runs. That one goes on.
func TestNodeWithACopiedDirectory(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	c.removable = true
	nodes := c.start("a", "b", "c")
	l := c.leader(nodes)
	of := "a"
	if of == l.name {
		of = "b"
	}
	nodes[of].end()
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(c.dirs[of])); err != nil {
		t.Fatal(err)
	}
	nodes[of] = c.start(of)[of]

	elsewhere := *c
	elsewhere.dirs = map[string]string{of: copied}
	elsewhere.peers = slices.Clone(c.peers)
	for i := range elsewhere.peers {
		if elsewhere.peers[i].Name == of {
			elsewhere.peers[i].Address = address(t)
		}
	}
	double := elsewhere.start(of)[of]
	c.ends(ErrTwice, "was the data directory "+copied+" copied?")
	double.end()
	l = c.put(nodes, l, "k|1", "v")
	c.has(nodes, c.lead(nodes, l, of), map[string]string{"k|1": "v"})
}

// A node that is started with a former copy of its data directory, which lacks entries that it has acknowledged to
// the leader, ends, and says so. The others go on.
func TestNodeWithAFormerCopyOfItsDirectory(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	nodes := c.start("a", "b", "c")
	l := c.leader(nodes)
	var others []string
	for name := range nodes {
		if name != l.name {
			others = append(others, name)
		}
	}
	old, other := others[0], others[1]
	nodes[old].end()
	former := t.TempDir()
	if err := os.CopyFS(former, os.DirFS(c.dirs[old])); err != nil {
		t.Fatal(err)
	}
	nodes[old] = c.start(old)[old]
	nodes[other].end() // so that the write that follows needs the acknowledgement of old
	if !l.put("k|1", "v") {
		t.Skip("another node has been elected, to which old has acknowledged nothing")
	}
	nodes[other] = c.start(other)[other]
	for end := time.Now().Add(patience); nodes[other].Status().Last < nodes[old].Status().Last; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("node %s does not get what it lacks:\n%v", other, c.log)
		}
	}
	nodes[old].end()
	delete(nodes, old)

	c.removable = true
	c.dirs[old] = former
	c.start(old)
	select {
	case err := <-c.fatal:
		if !errors.Is(err, ErrOldData) || !strings.Contains(err.Error(), "run \"holdfast cluster remove "+old+"\", then \"holdfast cluster add "+old+"=") {
			t.Errorf("it ended with %v; want %v, and what to do", err, ErrOldData)
		}
	case <-l.Lost():
		t.Skip("another node has been elected, to which old has acknowledged nothing")
	case <-time.After(patience):
		t.Fatalf("node %s does not end:\n%v", old, c.log)
	}
	c.put(nodes, l, "k|2", "v")
}

// A node that is started with the data directory of another cluster's node ends, and says which clusters they are.
func TestNodeWithADirectoryOfAnotherCluster(t *testing.T) {
	t.Parallel()
	c, other := newCluster(t, "a", "b"), newCluster(t, "b")
	nodes := c.start("a", "b")
	l := c.leader(nodes)
	nodes["b"].end()
	delete(nodes, "b")
	other.start("b")["b"].end()

	other.removable, other.peers = true, c.peers
	b := other.start("b")["b"]
	other.ends(ErrOtherCluster, "node a at "+c.peers[0].Address+", which --cluster-peers names, is of cluster "+l.n.self.Load().Cluster.String())
	b.end()
}

// A node whose configuration gives the others each other's address ends, and says what is wrong: it would follow the
// leader, and nothing that it stores would count. The others go on.
func TestNodeWithTheAddressesOfOthersSwapped(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	nodes := c.start("a", "b", "c")
	nodes["c"].end()
	delete(nodes, "c")

	swapped := *c
	swapped.removable = true
	swapped.peers = []Peer{{Name: "a", Address: c.peers[1].Address}, {Name: "b", Address: c.peers[0].Address}, c.peers[2]}
	wrong := swapped.start("c")["c"]
	swapped.ends(ErrPeers, "the node at "+swapped.peers[0].Address+` has the name "b", and not "a": correct the list`)
	wrong.end()
	c.put(nodes, c.leader(nodes), "k|1", "v")
}
