package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// member is a node of a test's cluster, without a server.
type member struct {
	*node.Node
	dir string
	end func()
}

// cluster starts nodes with these names.
func cluster(t *testing.T, names ...string) map[string]*member {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var peers []node.Peer
	for _, name := range names {
		address, err := process.UnusedAddress()
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, node.Peer{Name: name, Address: address})
	}
	type opened struct {
		*member
		err error
	}
	all := make(chan opened)
	for _, p := range peers {
		m := &member{dir: t.TempDir()}
		go func() {
			err := m.open(ctx, p.Name, peers)
			all <- opened{m, err}
		}()
	}
	nodes := map[string]*member{}
	for range peers {
		o := <-all
		if o.err != nil {
			t.Fatal(o.err)
		}
		t.Cleanup(o.end)
		nodes[o.Name()] = o.member
	}
	return nodes
}

func (m *member) open(ctx context.Context, name string, peers []node.Peer) (err error) {
	log := slog.New(slog.DiscardHandler)
	var itself atomic.Pointer[node.Node]
	m.Node, err = node.Open(ctx, node.Options{Dir: m.dir, Name: name, Peers: peers, Streams: Streams(itself.Load), Logger: log})
	if err != nil {
		return err
	}
	itself.Store(m.Node)
	stop, err := Serve(m.dir, NewReporter(m.Node, 0), Answers{Unready: func() []string { return []string{name + " rests"} }}, log)
	if err != nil {
		return errors.Join(err, m.Close())
	}
	m.end = func() {
		stop()
		_ = m.Close()
	}
	return nil
}

// await asks a node until the report is as the test wants it.
func (m *member) await(t *testing.T, what string, so func(*Report) bool) Report {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		r, err := Status(t.Context(), m.dir)
		if err != nil {
			t.Fatal(err)
		}
		if so(&r) {
			return r
		}
		if time.Now().After(end) {
			t.Fatalf("%s: the status stays %+v", what, r)
		}
	}
}

// give has the leadership given to a node. A leader that was just elected may not have heard of
// that one yet, and says so.
func (m *member) give(t *testing.T, to string) {
	t.Helper()
	before := m.await(t, "an election", func(r *Report) bool { return r.Leader != "" }).Leader
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := Transfer(t.Context(), m.dir, to)
		if r, statusErr := Status(t.Context(), m.dir); err == nil || statusErr == nil && r.Leader != "" && r.Leader != before {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("from %s to %q: %v", before, to, err)
		}
	}
}

func leads(name string) func(*Report) bool { return func(r *Report) bool { return r.Leader == name } }

// Any node answers for all of them, and has the leadership given away whichever node has it.
func TestAnyNodeAnswersForTheCluster(t *testing.T) {
	t.Parallel()
	nodes := cluster(t, "a", "b", "c")
	asked := nodes["a"]
	if why, err := Health(t.Context(), asked.dir); err != nil || !slices.Equal(why, []string{"a rests"}) {
		t.Errorf("health: %q, %v", why, err)
	}
	leader := asked.await(t, "an election", func(r *Report) bool { return r.Leader != "" && r.Explain() == "" }).Leader
	for _, to := range []string{"a", "b", "c", "a"} {
		if to == leader {
			continue
		}
		asked.give(t, to)
		for _, m := range nodes {
			m.await(t, "a transfer to "+to, leads(to))
		}
		leader = to
	}
	if err := Transfer(t.Context(), asked.dir, leader); err == nil || !strings.Contains(err.Error(), "leads already") {
		t.Errorf("a transfer to the leader: %v", err)
	}
	if err := Transfer(t.Context(), asked.dir, "d"); err == nil || !strings.Contains(err.Error(), "no node d; it has a, b, c") {
		t.Errorf("a transfer to a node that there is not: %v", err)
	}

	// Without a name it goes to any other one.
	asked.give(t, "")
	leader = asked.await(t, "a transfer", func(r *Report) bool { return r.Leader != "" && r.Leader != leader }).Leader

	// A node that has ended is missing, and is given nothing.
	gone := "b"
	if leader == gone {
		gone = "c"
	}
	nodes[gone].end()
	r := asked.await(t, "the end of "+gone, func(r *Report) bool { return r.Leader != "" && len(r.Missing) > 0 })
	if !slices.Equal(r.Missing, []string{gone}) || !r.Quorum {
		t.Errorf("without %s the report is %+v", gone, r)
	}
	if _, err := Status(t.Context(), nodes[gone].dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("the status of a node that has ended: %v", err)
	}
	if err := Transfer(t.Context(), nodes[gone].dir, ""); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a transfer by a node that has ended: %v", err)
	}
}

// The only node keeps the leadership, and says so at once.
func TestTransferOfTheOnlyNode(t *testing.T) {
	t.Parallel()
	a := cluster(t, "a")["a"]
	a.await(t, "an election", leads("a"))
	if err := Transfer(t.Context(), a.dir, ""); err == nil || !strings.Contains(err.Error(), "node a keeps the leadership: no other node has a vote") {
		t.Errorf("a transfer: %v", err)
	}
	a.await(t, "a leader after that", leads("a"))
}

// A node that is paused, or whose disk hangs, keeps no command waiting for long.
func TestNodeThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Dir(SocketPath(dir)), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", SocketPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Status(t.Context(), dir); err == nil || errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "has not answered within 5s: look at its log") {
		t.Errorf("the status: %v", err)
	}
}

// A node that has lost the others says so, and does not give away what it does not have.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	nodes := cluster(t, "a", "b")
	nodes["a"].await(t, "an election", func(r *Report) bool { return r.Leader != "" })
	nodes["b"].end()
	r := nodes["a"].await(t, "the end of b", func(r *Report) bool { return r.Leader == "" && len(r.Missing) > 0 })
	if r.Quorum || !strings.Contains(r.Explain(), "missing: b") {
		t.Errorf("got %+v: %s", r, r.Explain())
	}
	if err := Transfer(t.Context(), nodes["a"].dir, ""); err == nil {
		t.Error("the leadership was given away by a node that does not have it")
	}
}
