package serve

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// The log says what a node has to do when that has taken ten seconds, and every ten seconds from then on. What
// takes less has no line.
func TestWorkOfANodeInTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	now := time.Unix(0, 0)
	w := newNodeWork(output.NewProgress(&log), slog.New(slog.NewTextHandler(&log, nil)))
	w.now = func() time.Time { return now }
	receiving := func(received int64) *node.Status {
		return &node.Status{Role: node.Receiving, Received: received, ReceiveBytes: 400 << 20}
	}
	behind := func(entries uint64) *node.Status {
		return &node.Status{Role: node.Follower, Lag: entries, LagKnown: true}
	}
	for _, step := range []struct {
		after time.Duration
		do    func()
		want  string // in the line that the log has then; empty: it has none
	}{
		{0, func() { w.readsLog("data", 1<<20) }, ""},
		{9 * time.Second, func() { w.readsLog("data", 2<<20) }, ""},
		{time.Second, func() { w.readsLog("data", 3<<20) }, `"reading the cluster's log" bytes=3145728`},
		{time.Second, func() { w.readsLog("data", 4<<20) }, ""},
		{time.Second, func() { w.look(receiving(0), false) }, ""},
		{10 * time.Second, func() { w.look(receiving(100<<20), false) }, `"getting all data from the leader" bytes=104857600 of=419430400`},
		{10 * time.Second, func() { w.look(receiving(200<<20), false) }, "bytes=209715200"},
		{10 * time.Second, func() { w.look(behind(shownLag), false) }, ""},
		{10 * time.Second, func() { w.look(behind(shownLag), false) }, `"getting what was written meanwhile" missing_entries=10000`},
		{10 * time.Second, func() { w.look(behind(shownLag-1), false) }, ""},
		{10 * time.Second, func() { w.look(behind(shownLag), false) }, ""}, // it has begun anew
		{10 * time.Second, func() { w.look(&node.Status{Role: node.Leader}, false) }, ""},
		{0, func() { w.readsRows("data", 1024) }, ""},
		{10 * time.Second, func() { w.look(&node.Status{Role: node.Leader}, false); w.readsRows("data", 2048) }, `"reading the data" rows=2048`},
		{10 * time.Second, func() { w.look(&node.Status{Role: node.Leader}, true) }, ""},
	} {
		now = now.Add(step.after)
		log.Reset()
		step.do()
		if got := log.String(); (got == "") != (step.want == "") || !strings.Contains(got, step.want) {
			t.Errorf("at %v the log has %q, want %q", now.Sub(time.Unix(0, 0)), got, step.want)
		}
	}
}
