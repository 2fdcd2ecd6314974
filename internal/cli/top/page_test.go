package top_test

import (
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/broker/registry"
	"github.com/holdfast-mqtt/holdfast/internal/cli/top"
	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/overview"
)

// busy is a server with something of everything.
func busy() *top.View {
	at := time.Date(2026, 11, 23, 8, 12, 3, 0, time.UTC)
	answers, fsyncs := histogram.New(1000), histogram.New(1000)
	before := &overview.Overview{At: at.Add(-2 * time.Second), Figures: map[string]float64{}, Times: map[string]histogram.Snapshot{
		"holdfast_store_command_seconds": answers.Read(), "holdfast_journal_fsync_seconds": fsyncs.Read(),
	}}
	for i := range 1000 {
		answers.Observe(int64(700+i) * 1000)
		fsyncs.Observe(int64(400+i/2) * 1000)
	}
	return &top.View{Before: before, Now: overview.Overview{
		At: at, Uptime: 76 * time.Hour, Version: "1.0.0",
		Figures: map[string]float64{
			"holdfast_messages_received_total": 2468, "holdfast_messages_sent_total": 10_240,
			"holdfast_store_commands_total": 1047, "holdfast_store_commands_total GET": 602, "holdfast_store_commands_total SET": 420,
			"holdfast_connections": 212, "holdfast_sessions": 230, "holdfast_subscriptions": 1044, "holdfast_queued_messages": 36, "holdfast_queued_disk_bytes": 12_700,
			"holdfast_store_keys": 2, "holdfast_store_bytes": 1016, "holdfast_store_watches": 1,
			"holdfast_memory_pool_bytes": 1.2 * (1 << 20), "holdfast_memory_pool_max_bytes": 2 << 30, "holdfast_memory_max_bytes": 4 << 30,
			"holdfast_disk_free_bytes": 70 << 30, "holdfast_disk_reserve_bytes": 1 << 30,
		},
		Times: map[string]histogram.Snapshot{"holdfast_store_command_seconds": answers.Read(), "holdfast_journal_fsync_seconds": fsyncs.Read()},
		Keys:  []overview.Key{{Key: []byte("recipe"), Bytes: 1006}, {Key: []byte("plant/7"), Bytes: 10}},
		Sessions: []registry.Info{
			{ClientID: "sensor-7", Queued: 35, QueuedBytes: 12_500, Subscriptions: 1},
			{ClientID: "panel", Connected: true, Queued: 1, QueuedBytes: 200, Subscriptions: 12, Link: &registry.Link{Output: 824}},
		},
	}}
}

// The page of docs/command-line.md is one that the program draws.
func TestDocumentedPage(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../../docs/command-line.md")
	if err != nil {
		t.Fatal(err)
	}
	_, want, found := strings.Cut(string(doc), "$ holdfast top\n")
	want, _, _ = strings.Cut(want, "```\n")
	var got strings.Builder
	if err := top.Print(&got, busy().Page(80, 0)); err != nil || !found || got.String() != want {
		t.Errorf("%v; docs/command-line.md has:\n%s\nthe program draws:\n%s", err, want, got.String())
	}
}

// The longest sizes fit into 80 columns.
func TestSizesFit(t *testing.T) {
	t.Parallel()
	v := busy()
	for _, name := range []string{"holdfast_memory_pool_bytes", "holdfast_memory_pool_max_bytes", "holdfast_memory_max_bytes"} {
		v.Now.Figures[name] = 1023.9 * (1 << 30)
	}
	var got strings.Builder
	if err := top.Print(&got, v.Page(80, 0)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1023.9 GiB for clients", "of at most 1023.9 GiB", "process ≤ 1023.9 GiB\n"} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, got.String())
		}
	}
}

// A page has the size that is asked for, however long names are, and shows what is wrong first.
func TestPageFits(t *testing.T) {
	t.Parallel()
	v := busy()
	v.Fault = "no server\ncan be reached"
	v.Now.Unready = []string{"the disk hangs"}
	v.Now.Figures["holdfast_disk_low"] = 1
	v.Now.Bounds = []doctor.Finding{doctor.Bound("keys", 9, 10), doctor.Bound("sessions", 10, 10)}
	for range 50 {
		v.Now.Keys = append(v.Now.Keys, overview.Key{Key: []byte(strings.Repeat("\x1b[31m\xff\tä", 100)), Bytes: 1 << 40})
		v.Now.Sessions = append(v.Now.Sessions, registry.Info{ClientID: strings.Repeat("ü", 300), Queued: 1 << 40, QueuedBytes: 1 << 50})
	}
	for _, size := range [][2]int{{80, 24}, {80, 0}, {200, 100}, {60, 40}, {10, 5}, {1, 1}} {
		columns, lines := size[0], size[1]
		page := v.Page(columns, lines)
		if lines > 0 && len(page) > lines || lines == 0 && len(page) != 40 {
			t.Errorf("%v: %d lines", size, len(page))
		}
		for i, l := range page {
			if text := strings.TrimPrefix(l, "\t"); utf8.RuneCountInString(text) > columns || strings.ContainsAny(text, "\x1b\n\r\t") {
				t.Errorf("%v: line %d is %q", size, i, l)
			}
		}
	}
	page := v.Page(80, 24)
	for i, begin := range []string{"\tholdfast", "NO ANSWER   no server can be reached", "NOT READY   the disk hangs", "DISK FULL", "FILLS UP    keys: 90 % of 10", "FULL        sessions: 100 % of 10"} {
		if !strings.HasPrefix(page[i], begin) {
			t.Errorf("line %d is %q, want %q", i, page[i], begin)
		}
	}
}

// Without an earlier page, and of a server that has started anew, there are no rates.
func TestNoRates(t *testing.T) {
	t.Parallel()
	v := busy()
	v.Before.Figures["holdfast_messages_received_total"] = 1e9
	anew := strings.Join(v.Page(80, 24), "\n")
	v.Before = nil
	for name, page := range map[string]string{"started anew": anew, "first page": strings.Join(v.Page(80, 24), "\n")} {
		if !strings.Contains(page, "in –") {
			t.Errorf("%s: there are rates:\n%s", name, page)
		}
	}
}
