package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/clustered"
)

// serveNode runs a node of a cluster until ctx ends.
func serveNode(ctx context.Context, set *settings, out io.Writer) error {
	cfg := set.cfg
	say := sayer(&cfg, out)
	manager := newNotifier()
	manager.status("starting node " + cfg.Cluster.Node)
	n, err := clustered.Start(ctx, cfg)
	if err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	mqtt, webSocket := places(n.URLs())
	if len(webSocket) > 0 {
		say("holdfast websocket on %s", strings.Join(webSocket, " "))
	}
	say("holdfast listening on %s with data in %s, node %s at %s of a cluster of %d", strings.Join(mqtt, " "), cfg.DataDir, cfg.Cluster.Node, n.ClusterAddr(), len(cfg.Cluster.Peers))
	serving := "listening on " + strings.Join(append(mqtt, webSocket...), " ")
	manager.ready(serving)
	failed := error(nil)
	for ended := false; !ended; {
		select {
		case <-hangup:
			manager.reloading()
			set.reload(n)
			_ = n.Reload() // what went wrong is in the log
			manager.ready(serving)
		case failed = <-n.Failed():
			ended = true
		case <-ctx.Done():
			ended = true
		}
	}
	manager.stopping()
	grace, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	if err := errors.Join(failed, n.Shutdown(grace)); err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	say("holdfast stopped")
	return nil
}
