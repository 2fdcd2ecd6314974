package clustered_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/clustered"
	"github.com/holdfast-mqtt/holdfast/internal/replica/convert"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// The data of a server by itself become a cluster's, to which another node is added. When that one's
// data alone are left, they become a cluster of their own, which refuses the first node.
func TestClusterOfOneServersData(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, dirs: map[string]string{"a": t.TempDir()}, nodes: map[string]*clustered.Node{}, addrs: map[string]string{"a": address(t)}, log: &logs.Text{}}
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	config := func(name string) server.Config {
		cfg := server.Default()
		cfg.Listen, cfg.DataDir, cfg.Admin = []string{c.addrs[name]}, c.dirs[name], "127.0.0.1:0"
		cfg.Logger = slog.New(slog.NewTextHandler(c.log, nil)).With("at", name)
		return cfg
	}
	single, err := server.Start(config("a"))
	if err != nil {
		t.Fatal(err)
	}
	writer, err := client.Dial(ctx, c.addrs["a"])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Set(ctx, "greeting", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	if err := single.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}

	c.peers = []string{"a=" + address(t)}
	begin := func(name string, bootstrap bool) {
		t.Helper()
		cfg := config(name)
		cfg.Cluster = settings.Settings{Node: name, Peers: c.peers, Election: election, Bootstrap: bootstrap}
		n, err := clustered.Start(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.nodes[name] = n
		t.Cleanup(func() {
			ending, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = n.Shutdown(ending) // it may have ended
		})
	}
	begin("a", true)
	c.get("a", "greeting", "hello")
	if _, err := server.Start(config("a")); err == nil {
		t.Error("a server by itself runs on a node's data")
	}
	c.join("b", "a")
	c.get("b", "greeting", "hello")

	for _, name := range []string{"a", "b"} {
		if err := c.nodes[name].Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
	}
	s, err := convert.Open(nil, c.dirs["b"], slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "b" || len(s.Others) != 1 || s.Others[0] != "a" || s.Last == 0 || s.Committed > s.Last {
		t.Errorf("the survivor is %+v", s)
	}
	if err := errors.Join(s.Recover(), s.Close()); err != nil {
		t.Fatal(err)
	}
	begin("b", false)
	c.get("b", "greeting", "hello")
	begin("a", true) // as before: its data are a node's already
	select {
	case err := <-c.nodes["a"].Failed():
		if !errors.Is(err, node.ErrOtherCluster) {
			t.Errorf("the node of the former cluster ended with %v", err)
		}
	case <-ctx.Done():
		t.Fatalf("the node of the former cluster does not end:\n%v", c.log)
	}
}

// A node that is the only one of its cluster ends without a word of others that do not take the leadership: there are
// none.
func TestTheOnlyNodeEnds(t *testing.T) {
	t.Parallel()
	var text logs.Text
	cfg := server.Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, t.TempDir()
	cfg.Cluster = settings.Settings{Node: "a", Peers: []string{"a=" + address(t)}}
	cfg.Logger = slog.New(slog.NewTextHandler(&text, nil))
	n, err := clustered.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); n.Status().Role != node.Leader; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not lead:\n%s", text.String())
		}
	}
	if err := n.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if strings.Contains(text.String(), "no other node has taken the leadership") {
		t.Errorf("it says:\n%s", text.String())
	}
}
