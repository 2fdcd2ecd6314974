// Package clusteredtest starts nodes of a cluster in the process of a test.
package clusteredtest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/clustered"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// Node says where a node is.
type Node struct {
	Name   string
	Dir    string // of its data
	Listen string // for clients
	Admin  string // --admin; empty: there is none
}

// Start starts nodes of a cluster, all at once, and waits until each has opened its data. peers are
// those of the whole cluster, as --cluster-peers has them. The nodes end with the test.
func Start(ctx context.Context, t testing.TB, peers []string, nodes ...Node) map[string]*clustered.Node {
	t.Helper()
	type started struct {
		name string
		node *clustered.Node
		err  error
	}
	all, running := make(chan started, len(nodes)), map[string]*clustered.Node{}
	for _, n := range nodes {
		cfg := server.Default()
		cfg.Listen, cfg.DataDir, cfg.Logger = []string{n.Listen}, n.Dir, slog.New(slog.DiscardHandler)
		cfg.Admin = n.Admin
		cfg.Cluster = settings.Settings{Node: n.Name, Peers: peers, Election: 3 * time.Second}
		go func() {
			node, err := clustered.Start(ctx, cfg)
			all <- started{n.Name, node, err}
		}()
	}
	for range nodes {
		s := <-all
		if s.err != nil {
			t.Fatal(s.err)
		}
		running[s.name] = s.node
		t.Cleanup(func() {
			grace, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = s.node.Shutdown(grace) // it may have ended
		})
	}
	return running
}
