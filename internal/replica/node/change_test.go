package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
)

// waiting is a node that waits until it is added.
type waiting struct {
	node chan *Node
	err  chan error
	stop context.CancelFunc
}

// wait starts a node that is not one of the cluster's yet.
func (c *cluster) wait(name string) *waiting {
	c.t.Helper()
	c.peers, c.dirs[name] = append(slices.Clone(c.peers), Peer{Name: name, Address: address(c.t)}), c.t.TempDir()
	return c.waitAs(name)
}

func (c *cluster) waitAs(name string) *waiting {
	ctx, stop := context.WithCancel(context.Background())
	w := &waiting{make(chan *Node, 1), make(chan error, 1), stop}
	o := c.options(name)
	go func() {
		if n, err := Open(ctx, o); err != nil {
			w.err <- err
		} else {
			w.node <- n
		}
	}()
	c.t.Cleanup(stop)
	return w
}

// change has the leader, whichever it is, change the members, until it succeeds or is refused.
func (c *cluster) change(nodes map[string]*running, change func(context.Context, *Node) error) error {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil {
		for _, r := range nodes {
			if s := r.Status(); !s.Ready {
				continue
			}
			err := change(ctx, r.Node)
			if err == nil || errors.Is(err, members.ErrRefused) && !errors.Is(err, ErrChanging) && !strings.Contains(err.Error(), "would have to answer") {
				return err
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	c.t.Fatalf("no leader has made the change:\n%v", c.log)
	return nil
}

// add adds a node, and returns when it has a vote.
func (c *cluster) add(nodes map[string]*running, name string) {
	c.t.Helper()
	w := c.wait(name)
	at := c.peers[len(c.peers)-1].Address
	c.until("the new node answers", func() bool { return strings.Contains(c.log.String(), "node="+name+" ") || len(w.err) > 0 })
	if err := c.change(nodes, func(ctx context.Context, n *Node) error {
		if m, is := n.roster.Load().list.Named(name); is && m.Address == at {
			return nil // the former leader has begun it
		}
		err := n.Add(ctx, name, at)
		if err != nil && strings.Contains(err.Error(), "no node answers") {
			return errUnknown // it does not listen yet
		}
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
	select {
	case n := <-w.node:
		nodes[name] = c.run(name, n)
	case err := <-w.err:
		c.t.Fatalf("node %s: %v", name, err)
	case <-time.After(patience):
		c.t.Fatalf("node %s has not noticed that it was added:\n%v", name, c.log)
	}
	c.until("the new node has a vote", func() bool { return nodes[name].votes() })
}

func (r *running) votes() bool {
	m, is := r.roster.Load().list.Named(r.name)
	return is && !m.Learner
}

// remove removes a node, which then ends.
func (c *cluster) remove(nodes map[string]*running, name string) {
	c.t.Helper()
	if err := c.change(nodes, func(ctx context.Context, n *Node) error {
		if _, is := n.roster.Load().list.Named(name); !is {
			return nil
		}
		return n.Remove(ctx, name)
	}); err != nil {
		c.t.Fatal(err)
	}
	r := nodes[name]
	delete(nodes, name)
	select {
	case <-r.ending.Done():
	case <-time.After(patience):
		c.t.Fatalf("node %s does not notice that it was removed:\n%v", name, c.log)
	}
	r.end()
}

// A cluster grows from one node to three and to five, and shrinks again, while clients write. Nothing
// that was acknowledged is lost; the nodes that were there at first are not needed at the end.
func TestGrowAndShrink(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a")
	c.removable = true
	nodes := c.start("a")
	l, want := c.leader(nodes), map[string]string{}
	write := func(what string) {
		for i := range 20 {
			key := fmt.Sprintf("k|%s.%d", what, i)
			l = c.put(nodes, l, key, key)
			want[key] = key
		}
	}
	write("alone")
	for _, name := range []string{"b", "c", "d", "e"} {
		c.add(nodes, name)
		write("with " + name)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		c.remove(nodes, name)
		if l.name == name {
			l = c.leader(nodes)
		}
		write("without " + name)
	}
	c.has(nodes, l, want)
	if got := nodes["e"].Status().Members; len(got) != 1 || got[0].Name != "e" || got[0].ID != nodes["e"].ID() {
		t.Errorf("the members are %+v", got)
	}
	// A restart knows that it is alone, whatever its configuration says.
	nodes["e"].end()
	nodes = c.start("e")
	c.has(nodes, c.leader(nodes), want)
}

// A node that was removed while it was away ends by itself when it comes back, and harms nothing.
func TestRemovedNodeThatComesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	c.removable = true
	nodes := c.start("a", "b", "c")
	l := c.leader(nodes)
	away := "a"
	if l.name == away {
		away = "b"
	}
	nodes[away].end()
	delete(nodes, away)
	if err := c.change(nodes, func(ctx context.Context, n *Node) error { return n.Remove(ctx, away) }); err != nil {
		t.Fatal(err)
	}
	term := nodes[l.name].Status().Term
	back := c.start(away)[away]
	select {
	case err := <-c.fatal:
		if !errors.Is(err, ErrRemoved) || !strings.Contains(err.Error(), "cluster add "+away) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatalf("it does not end:\n%v", c.log)
	}
	if s := nodes[l.name].Status(); s.Role == Leader && s.Term != term {
		t.Errorf("the term was %d and is %d", term, s.Term)
	}
	back.end()

	// It comes back as a new node, by its old name.
	c.peers = slices.DeleteFunc(c.peers, func(p Peer) bool { return p.Name == away })
	c.add(nodes, away)
	l = c.put(nodes, l, "k|1", "v")
	c.has(nodes, c.lead(nodes, l, away), map[string]string{"k|1": "v"})
}

// Changes that would end the quorum, or that cannot be right, are refused with a reason.
func TestChangesThatAreRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	nodes := c.start("a", "b", "c")
	l := c.leader(nodes)
	refused := func(want string, change func(context.Context, *Node) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var err error
		c.until("a leader says "+want, func() bool {
			for _, r := range nodes {
				if err = change(ctx, r.Node); err == nil || !errors.Is(err, consensus.ErrNotLeader) && strings.Contains(err.Error(), want) {
					return true
				}
			}
			return false
		})
		if err == nil {
			t.Errorf("%s: not refused", want)
		}
	}
	free := address(t)
	refused("has a node a already", func(ctx context.Context, n *Node) error { return n.Add(ctx, "a", free) })
	refused("each node listens on one of its own", func(ctx context.Context, n *Node) error { return n.Add(ctx, "d", c.peers[1].Address) })
	refused("no node answers", func(ctx context.Context, n *Node) error { return n.Add(ctx, "d", free) })
	refused("has no node d", func(ctx context.Context, n *Node) error { return n.Remove(ctx, "d") })

	other := newCluster(t, "z")
	other.start("z")
	refused("is one of the cluster", func(ctx context.Context, n *Node) error { return n.Add(ctx, "z", other.peers[0].Address) })

	w := c.wait("d")
	at := c.peers[3].Address
	refused(`has the name "d"`, func(ctx context.Context, n *Node) error { return n.Add(ctx, "e", at) })
	w.stop()
	if err := <-w.err; !errors.Is(err, context.Canceled) {
		t.Errorf("a node that waits was stopped: %v", err)
	}

	// With one node away the other two must stay.
	down := slices.Sorted(maps.Keys(others(nodes, l.name)))
	nodes[down[0]].end()
	delete(nodes, down[0])
	refused("2 of 2 nodes would have to answer, and 1 do", func(ctx context.Context, n *Node) error { return n.Remove(ctx, down[1]) })
}

// A cluster whose nodes write a newer format takes no node of an older program: it is not added, and one that connects is
// kept out.
func TestNodeOfAnOlderProgram(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a")
	nodes := c.start("a")
	c.leader(nodes)
	a := nodes["a"].Node
	a.do(func() {
		newer := *a.roster.Load().list
		newer.Level = members.Level + 1
		a.setRoster(&newer)
	})
	w := c.wait("b")
	at := c.peers[len(c.peers)-1].Address
	c.until("the new node answers", func() bool { return strings.Contains(c.log.String(), "node=b ") || len(w.err) > 0 })
	want := fmt.Sprintf("knows the format level %d, and the cluster has level %d: use the version that the other nodes run", members.Level, members.Level+1)
	err := c.change(nodes, func(ctx context.Context, n *Node) error {
		err := n.Add(ctx, "b", at)
		if err != nil && strings.Contains(err.Error(), "no node answers") {
			return errUnknown // it does not listen yet
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("added: %v, want %q", err, want)
	}
	if _, err := a.admit(7, at, members.Own.Announce()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("connected: %v, want %q", err, want)
	}
	newer := members.Levels{Lowest: 1, Highest: members.Level + 1}
	if _, err := a.admit(7, at, newer.Announce()); err != nil {
		t.Errorf("of a program that knows the format: %v", err)
	}
	newer.Lowest = newer.Highest + 1
	newer.Highest = newer.Lowest
	if _, err := a.admit(7, at, newer.Announce()); err == nil || !strings.Contains(err.Error(), "first use a version on all nodes that knows both") {
		t.Errorf("of a program that has ceased to know the format: %v", err)
	}
}

// A node that is removed while it gets all data ends, and the leader ceases to send: another node may need them.
func TestLearnerThatIsRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a")
	c.removable, c.o.SnapshotRate = true, 64<<10 // the data take a minute
	nodes := c.start("a")
	l := c.leader(nodes)
	value := make([]byte, 1<<20)
	_, _ = rand.Read(value) // does not fail
	for i := range 4 {
		l = c.put(nodes, l, fmt.Sprint("k|", i), string(value))
	}
	w := c.wait("b")
	c.until("the new node answers", func() bool { return strings.Contains(c.log.String(), "node=b ") || len(w.err) > 0 })
	if err := c.change(nodes, func(ctx context.Context, n *Node) error { return n.Add(ctx, "b", c.peers[1].Address) }); err != nil {
		t.Fatal(err)
	}
	b := c.run("b", <-w.node)
	c.until("the new node gets data", func() bool { return b.Status().Received > 0 })
	sends := func() (does bool) {
		nodes["a"].do(func() { does = nodes["a"].snapshots.sending })
		return does
	}
	if !sends() {
		t.Fatal("the leader has sent everything already")
	}
	nodes["b"] = b
	c.remove(nodes, "b")
	select {
	case err := <-c.fatal:
		if !errors.Is(err, ErrRemoved) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("the removed node does not say why it ends")
	}
	c.until("the leader sends no data any more", func() bool { return !sends() })
	c.put(nodes, l, "k|after", "v")
}

// Of two nodes one is removed, and the other one ends in this moment, without a write or a proper end: it
// knows by its disk that it is alone.
func TestNodeThatIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b")
	c.removable = true
	nodes := c.start("a", "b")
	l := c.put(nodes, c.leader(nodes), "k|1", "v")
	l = c.lead(nodes, l, "a")
	if err := nodes[l.name].Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	crashed := t.TempDir()
	if err := os.CopyFS(crashed, os.DirFS(c.dirs["a"])); err != nil {
		t.Fatal(err)
	}
	nodes["b"].end()
	nodes["a"].end()
	c.dirs["a"] = crashed
	nodes = c.start("a")
	c.leader(nodes).must(t, map[string]string{"k|1": "v"})
}
