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

	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/clustered"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
)

// serveNode runs a node of a cluster until ctx ends.
func serveNode(ctx context.Context, set *settings, out io.Writer, line *output.Progress) error {
	cfg := set.cfg
	say := sayer(&cfg, out, line)
	manager := newNotifier()
	manager.status("starting node " + cfg.Cluster.Node)
	work := newNodeWork(line, cfg.Logger)
	cfg.Progress = func(rows int64) { work.readsRows(cfg.DataDir, rows) }
	cfg.Cluster.Reading = func(bytes int64) { work.readsLog(cfg.DataDir, bytes) }
	n, err := clustered.Start(ctx, cfg)
	line.Erase()
	if err != nil {
		return err
	}
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	go func() {
		defer failstop.End(cfg.Logger, "the look at what the node still lacks")
		work.watch(watching, n)
	}()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	mqtt, webSocket := places(n.URLs())
	if len(webSocket) > 0 {
		say("holdfast websocket on %s", strings.Join(webSocket, " "))
	}
	say("holdfast listening on %s with data in %s, node %s at %s of a cluster of %d", strings.Join(mqtt, " "), cfg.DataDir, cfg.Cluster.Node, n.ClusterAddr(), len(n.Status().Members))
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
