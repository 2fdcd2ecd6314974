package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
)

// refused checks that a node does not start, and why.
func (c *cluster) refused(o Options, want error, text string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := Open(ctx, o)
	if err == nil {
		_ = n.Close()
		c.t.Fatalf("a node has started; want: %v, %s", want, text)
	}
	if want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
		c.t.Errorf("refused with %q, want %v, and %q in it", err, want, text)
	}
}

// What cannot be a node of the cluster is refused at its start, with a reason.
func TestNodesThatAreRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	nodes := c.start("a", "b", "c")
	c.leader(nodes)

	c.refused(c.options("a"), datadir.ErrLocked, c.dirs["a"])
	nodes["a"].end()

	o := c.options("a")
	o.Dir = t.TempDir()
	c.refused(o, ErrOtherCluster, "another ID")

	o = c.options("a")
	o.Name, o.Listen = "b", c.peers[0].Address
	c.refused(o, ErrNotOurs, `that of node "a"`)

	o = c.options("a")
	o.Peers = o.Peers[:2]
	n, err := Open(t.Context(), o)
	if err != nil || !strings.Contains(c.log.String(), "--cluster-peers is for the first start") {
		t.Errorf("with a list of peers that lacks a node: %v\n%v", err, c.log)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}

	o = c.options("a")
	o.Peers, o.Listen = append([]Peer(nil), c.peers...), "0.0.0.0:0"
	c.refused(o, port.ErrNeedsTLS, "certificate")

	single := t.TempDir()
	j, err := journal.Open(journal.Options{Dir: single, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	a := j.Begin()
	a.Set([]byte("k|1"), []byte("v"))
	a.End(nil)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	alone := newCluster(t, "z")
	alone.dirs["z"] = single
	alone.refused(alone.options("z"), ErrNotOurs, "was no node")

	// A node whose Raft log is gone has forgotten its votes.
	if err := os.RemoveAll(filepath.Join(c.dirs["a"], Dir, "raft")); err != nil {
		t.Fatal(err)
	}
	c.refused(c.options("a"), raftlog.ErrNone, "raft")
}

// Options that make no sense are refused before anything is opened.
func TestOptions(t *testing.T) {
	t.Parallel()
	two := []Peer{{Name: "a", Address: "127.0.0.1:1"}, {Name: "b", Address: "127.0.0.1:2"}}
	for want, o := range map[string]Options{
		"must include it":           {Name: "c", Peers: two},
		"the same name":             {Name: "a", Peers: []Peer{two[0], {Name: "a", Address: "127.0.0.1:2"}}},
		"the same address":          {Name: "a", Peers: []Peer{two[0], {Name: "b", Address: "127.0.0.1:1"}}},
		"needs a name":              {Name: "a", Peers: []Peer{two[0], {}}},
		"election timeout":          {Name: "a", Peers: two, Election: MinElection - 1},
		"an election timeout of 1m": {Name: "a", Peers: two, Election: MaxElection + 1},
		"too few":                   {Name: "a", Peers: two, LogKeep: MinLogKeep - 1},
		"at most":                   {Name: "a", Peers: make([]Peer, MaxPeers+1)},
	} {
		if err := o.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
