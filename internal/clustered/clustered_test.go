package clustered_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/clustered"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// election is long enough for a leader on a busy machine to stay in office while a test asks it
// for something.
const election = 3 * time.Second

// address is one that no other test uses, and no connection of another program.
func address(t *testing.T) string {
	t.Helper()
	address, err := process.UnusedAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// cluster is a cluster in the test's process.
type cluster struct {
	t     *testing.T
	peers []string
	dirs  map[string]string
	nodes map[string]*clustered.Node
	addrs map[string]string // for clients
	log   *logs.Text

	configure func(name string, c *server.Config)
}

func start(t *testing.T, names ...string) *cluster {
	t.Helper()
	return startWith(t, func(string, *server.Config) {}, names...)
}

// startWith is start with settings of a node besides those of every test.
func startWith(t *testing.T, configure func(name string, c *server.Config), names ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, configure: configure, dirs: map[string]string{}, nodes: map[string]*clustered.Node{}, addrs: map[string]string{}, log: &logs.Text{}}
	for _, name := range names {
		c.peers = append(c.peers, name+"="+address(t))
		c.dirs[name], c.addrs[name] = t.TempDir(), address(t)
	}
	c.run(names...)
	t.Cleanup(func() {
		for _, n := range c.nodes {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			if err := n.Shutdown(ctx); err != nil {
				t.Logf("shutdown: %v", err)
			}
			cancel()
		}
		if t.Failed() {
			t.Logf("the nodes log\n%v", c.log)
		}
	})
	return c
}

// run starts nodes at the same time.
func (c *cluster) run(names ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	type started struct {
		name string
		node *clustered.Node
		err  error
	}
	all := make(chan started)
	for _, name := range names {
		cfg := server.Default()
		cfg.Listen, cfg.DataDir, cfg.Admin = []string{c.addrs[name]}, c.dirs[name], "127.0.0.1:0"
		cfg.Cluster = settings.Settings{Node: name, Peers: c.peers, Election: election}
		cfg.Logger = slog.New(slog.NewTextHandler(c.log, nil)).With("at", name)
		c.configure(name, &cfg)
		go func() {
			n, err := clustered.Start(ctx, cfg)
			all <- started{name, n, err}
		}()
	}
	for range names {
		s := <-all
		if s.err != nil {
			c.t.Fatalf("%s: %v", s.name, s.err)
		}
		c.nodes[s.name] = s.node
	}
}

// leader waits for one, and returns its name and those of the others.
func (c *cluster) leader() (leader string, others []string) {
	c.t.Helper()
	for end := time.Now().Add(patience); leader == ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatal("no node serves clients")
		}
		for name, n := range c.nodes {
			if s := n.Status(); n.Server() != nil && s.Role == node.Leader {
				leader = name
			}
		}
	}
	for name := range c.nodes {
		if name != leader {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	return leader, others
}

func (c *cluster) client(name string) *client.Client {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cl, err := client.Dial(ctx, c.addrs[name])
	for err != nil && ctx.Err() == nil { // a node holds it for 5 s only while a leader is elected
		cl, err = client.Dial(ctx, c.addrs[name])
	}
	if err != nil {
		c.t.Fatalf("connect to %s: %v", name, err)
	}
	c.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func (c *cluster) get(name, key, want string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, found, err := c.client(name).Get(ctx, key)
	if err != nil || !found || string(v.Bytes) != want {
		c.t.Errorf("at %s: %q, %v, %v, want %q", name, v.Bytes, found, err, want)
	}
}

// Every node takes every client; when the leader goes, its keys, messages and sessions are
// there at another node.
func TestAnyNodeTakesAnyClient(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	leader, others := c.leader()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := c.client(others[0]).Set(ctx, "greeting", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	for name := range c.nodes {
		c.get(name, "greeting", "hello")
	}
	sub := mqtttest.Connect(t, c.addrs[others[1]], mqtttest.Persistent("subscriber"))
	sub.Subscribe("news", 1)
	sub.Drop()
	pub := mqtttest.Connect(t, c.addrs[leader], mqtttest.ClientID("publisher"))
	pub.PublishAll([]mqtttest.Message{{Topic: "news", Payload: "waiting", QoS: 1}})

	// The leadership goes elsewhere.
	if err := control.Transfer(ctx, c.dirs[others[0]], others[1]); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if now, _ := c.leader(); now == others[1] {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not lead", others[1])
		}
	}
	for name := range c.nodes {
		c.get(name, "greeting", "hello")
	}
	again := mqtttest.Dial(t, c.addrs[leader])
	if connack := again.Connect(mqtttest.Persistent("subscriber"), mqtttest.Resume()); !connack.SessionPresent {
		t.Error("the session is gone")
	}
	if got := mqtttest.Payloads(again.Collect()); !slices.Equal(got, []string{"waiting"}) {
		t.Errorf("got %q", got)
	}

	// A node that stops, and starts again, has everything.
	former, rest := c.leader()
	if err := c.nodes[former].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, former)
	for _, name := range rest {
		c.get(name, "greeting", "hello")
	}
	c.run(former)
	c.get(former, "greeting", "hello")
}

func TestStatusOfACluster(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	leader, others := c.leader()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	status := func(of string, so func(control.Report) bool) control.Report {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			r, err := control.Status(ctx, c.dirs[of])
			if err != nil {
				t.Fatal(err)
			}
			if so(r) {
				return r
			}
			if time.Now().After(end) {
				t.Fatalf("the status stays %+v", r)
			}
		}
	}
	for name := range c.nodes {
		r := status(name, func(r control.Report) bool { return r.Leader == leader && r.Explain() == "" })
		if r.Node != name || !r.Quorum || len(r.Nodes) != 3 || r.Nodes[0].Name != "a" || r.Nodes[2].Name != "c" {
			t.Errorf("%+v", r)
		}
	}
	for _, want := range []struct{ to, err string }{{leader, "leads already"}, {"d", "has no node d; it has a, b, c"}} {
		if err := control.Transfer(ctx, c.dirs[others[0]], want.to); err == nil || !strings.Contains(err.Error(), want.err) {
			t.Errorf("to %s: %v", want.to, err)
		}
	}
	if err := c.nodes[others[0]].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, others[0])
	r := status(leader, func(r control.Report) bool { return len(r.Missing) == 1 })
	if !r.Quorum || r.Explain() != "missing: "+others[0] {
		t.Errorf("%+v: %s", r, r.Explain())
	}
	if _, err := control.Status(ctx, c.dirs[others[0]]); !errors.Is(err, control.ErrNotRunning) {
		t.Errorf("of a node that has stopped: %v", err)
	}
	if err := c.nodes[leader].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, leader)
	r = status(others[1], func(r control.Report) bool { return len(r.Missing) == 2 && r.Leader == "" })
	if why := r.Explain(); r.Quorum || !strings.Contains(why, "no quorum: 1 of 3 nodes answer") || !strings.Contains(why, "missing: ") {
		t.Errorf("%+v: %s", r, why)
	}
	// It may yet take the leadership that was given to it, and lose it: it has a quorum's votes.
	c.until("a transfer without a leader fails", func() bool { return control.Transfer(ctx, c.dirs[others[1]], "") != nil })
}

// A leader that gives its office to a node which does not take it runs no server after the other in
// the meantime: each would end at its first write.
func TestNoServerWhileTheLeadershipIsGivenAway(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b")
	leader, others := c.leader()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	writer := c.client(leader)
	if _, err := writer.Set(ctx, "key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	if err := c.nodes[others[0]].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, others[0])
	const servers = "the limit of open files bounds connections" // each says so when it starts
	before := strings.Count(c.log.String(), servers)
	writing, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for writing.Err() == nil {
			_, _ = writer.Set(writing, "key", []byte("value")) // of which some meet a new server
		}
	}()
	_ = control.Transfer(ctx, c.dirs[leader], "") // fails, because there is no other node
	for end := time.Now().Add(patience); c.nodes[leader].Status().Role == node.Leader; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a leader without a quorum stays in office")
		}
	}
	stop()
	<-ended
	if n := strings.Count(c.log.String(), servers) - before; n > 5 {
		t.Errorf("%d servers were started while the leadership was given away", n)
	}
}
