package clustered_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/clustered"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// Every node makes backups, while clients write: each backup has everything that was acknowledged before its command
// began. A server by itself, and a new cluster, start on what was restored of a follower's.
func TestBackupOfAnyNode(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	leader, others := c.leader()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	sub := mqtttest.Connect(t, c.addrs[others[0]], mqtttest.Persistent("subscriber"))
	sub.Subscribe("news", 1)
	sub.Drop()
	pub := mqtttest.Connect(t, c.addrs[leader], mqtttest.ClientID("publisher"))
	pub.PublishAll([]mqtttest.Message{{Topic: "news", Payload: "waiting", QoS: 1}})

	key := func(i int64) string { return fmt.Sprint("key/", i) }
	var acknowledged atomic.Int64
	writing, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	writer := c.client(leader)
	go func() {
		for writing.Err() == nil {
			if _, err := writer.Set(ctx, key(acknowledged.Load()), []byte("value")); err != nil {
				ended <- err
				return
			}
			acknowledged.Add(1)
		}
		ended <- nil
	}()
	to := t.TempDir()
	before := map[string]int64{}
	for _, name := range []string{leader, others[0], others[1]} {
		c.until("more is acknowledged", func() bool { return acknowledged.Load() > before[leader]+100 })
		before[name] = acknowledged.Load()
		done, err := control.Backup(ctx, c.dirs[name], filepath.Join(to, name), false, func(backup.Progress) {})
		if err != nil || done.Node != name || int64(done.Entry) < before[name] || done.Files == 0 || done.Bytes == 0 {
			t.Fatalf("a backup by %s: %+v, %v; %d keys were acknowledged", name, done, err, before[name])
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	restored := func(name string) server.Config {
		t.Helper()
		cfg := server.Default()
		cfg.Listen, cfg.DataDir = []string{address(t)}, filepath.Join(t.TempDir(), "restored")
		cfg.Logger = slog.New(slog.NewTextHandler(c.log, nil)).With("at", "restored of "+name)
		report, _, err := server.Restore(filepath.Join(to, name), cfg.DataDir, func(backup.Progress) {}, nil)
		if err != nil || int64(report.Store.Keys) < before[name] || report.Broker.Queued != 1 {
			t.Fatalf("restored of %s: %+v, %v", name, report, err)
		}
		return cfg
	}
	for name, acknowledged := range before {
		cfg := restored(name)
		s, err := server.Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		reader, err := client.Dial(ctx, cfg.Listen[0])
		if err != nil {
			t.Fatal(err)
		}
		for i := range acknowledged {
			if v, found, err := reader.Get(ctx, key(i)); err != nil || !found || string(v.Bytes) != "value" {
				t.Fatalf("the backup by %s lacks %s, of %d that were acknowledged before: %v", name, key(i), acknowledged, err)
			}
		}
		_ = reader.Close()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	}

	cfg := restored(others[1])
	next := &cluster{t: t, peers: []string{"a=" + address(t)}, dirs: map[string]string{"a": cfg.DataDir}, nodes: map[string]*clustered.Node{}, addrs: map[string]string{"a": cfg.Listen[0]}, log: &logs.Text{}}
	cfg.Cluster = settings.Settings{Node: "a", Peers: next.peers, Election: election, Bootstrap: true}
	n, err := clustered.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	next.nodes["a"] = n
	t.Cleanup(func() {
		for _, n := range next.nodes {
			ending, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = n.Shutdown(ending)
			cancel()
		}
	})
	next.join("d", "a")
	next.get("d", key(0), "value")
	again := mqtttest.Dial(t, next.addrs["d"])
	if connack := again.Connect(mqtttest.Persistent("subscriber"), mqtttest.Resume()); !connack.SessionPresent {
		t.Error("the session is not in the backup")
	}
	if got := mqtttest.Payloads(again.Collect()); len(got) != 1 || got[0] != "waiting" {
		t.Errorf("got %q", got)
	}
	if a, b := next.nodes["a"].Status().Cluster, c.nodes[leader].Status().Cluster; a == b {
		t.Errorf("the new cluster is %v, as the former one", a)
	}
}
