package clustered_test

import (
	"context"
	"errors"
	"fmt"
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
)

// join starts a node that is not one of the cluster's, and adds it by asking the node of.
func (c *cluster) join(name, of string) {
	c.t.Helper()
	at := address(c.t)
	c.peers = append(slices.Clone(c.peers), name+"="+at)
	c.dirs[name], c.addrs[name] = c.t.TempDir(), address(c.t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cfg := server.Default()
	cfg.Listen, cfg.DataDir, cfg.Admin = []string{c.addrs[name]}, c.dirs[name], "127.0.0.1:0"
	cfg.Cluster = settings.Settings{Node: name, Peers: c.peers, Election: election}
	cfg.Logger = slog.New(slog.NewTextHandler(c.log, nil)).With("at", name)
	started := make(chan error, 1)
	var n *clustered.Node
	go func() {
		var err error
		n, err = clustered.Start(ctx, cfg)
		started <- err
	}()
	for {
		err := control.Add(ctx, c.dirs[of], name, at)
		if err == nil || strings.Contains(err.Error(), "has a node "+name+" already") { // by the leader before
			break
		}
		if ctx.Err() != nil {
			c.t.Fatal(err)
		}
	}
	if err := <-started; err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = n
	c.until(name+" has a vote", func() bool {
		r, err := control.Status(ctx, c.dirs[of])
		line, known := r.Named(name)
		return err == nil && r.Leader != "" && known && !line.Learner
	})
}

// leave removes a node by asking the node of, and waits until it has ended by itself.
func (c *cluster) leave(name, of string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := control.Remove(ctx, c.dirs[of], name)
		if err == nil || strings.Contains(err.Error(), "has no node "+name) { // the leader before has done it
			break
		}
		if ctx.Err() != nil {
			c.t.Fatal(err)
		}
	}
	n := c.nodes[name]
	delete(c.nodes, name)
	select {
	case err := <-n.Failed():
		if !errors.Is(err, node.ErrRemoved) {
			c.t.Errorf("%s has ended with %v", name, err)
		}
	case <-ctx.Done():
		c.t.Fatalf("%s does not end", name)
	}
	_ = n.Shutdown(ctx)
}

func (c *cluster) until(what string, is func() bool) {
	c.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// A cluster of one grows to three while a client writes and a session waits, and shrinks to the two
// that came later. Nothing is lost, and the client of a node that stays goes on.
func TestNodesComeAndGo(t *testing.T) {
	t.Parallel()
	c := start(t, "a")
	c.leader()
	sub := mqtttest.Connect(t, c.addrs["a"], mqtttest.Persistent("subscriber"))
	sub.Subscribe("news", 1)
	sub.Drop()
	pub := mqtttest.Connect(t, c.addrs["a"], mqtttest.ClientID("publisher"))
	pub.PublishAll([]mqtttest.Message{{Topic: "news", Payload: "waiting", QoS: 1}})

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	writing, stop := context.WithCancel(ctx)
	acked := make(chan int)
	writer, err := client.Dial(ctx, c.addrs["a"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = writer.Close() })
	go func() {
		n := 0
		for writing.Err() == nil {
			if _, err := writer.Set(writing, fmt.Sprint("key ", n), []byte("value")); err == nil {
				n++
			}
		}
		acked <- n
	}()
	c.join("b", "a")
	c.join("c", "b")
	stop()
	n := <-acked
	if n == 0 {
		t.Error("nothing was written meanwhile")
	}
	c.leave("a", "c")
	for _, name := range []string{"b", "c"} {
		for _, i := range []int{0, n / 2, n - 1} {
			c.get(name, fmt.Sprint("key ", i), "value")
		}
	}
	again := mqtttest.Dial(t, c.addrs["c"])
	if connack := again.Connect(mqtttest.Persistent("subscriber"), mqtttest.Resume()); !connack.SessionPresent {
		t.Error("the session is gone")
	}
	if got := mqtttest.Payloads(again.Collect()); !slices.Equal(got, []string{"waiting"}) {
		t.Errorf("got %q", got)
	}
	if err := control.Add(ctx, c.dirs["b"], "x", address(t)); err == nil || !strings.Contains(err.Error(), "Start it first: holdfast serve --node x") {
		t.Errorf("a node that does not run: %v", err)
	}
	if err := control.Remove(ctx, c.dirs["b"], "x"); err == nil || !strings.Contains(err.Error(), "has b, c") {
		t.Errorf("a node that there is not: %v", err)
	}
}
