package control

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/opsocket"
	"github.com/holdfast-mqtt/holdfast/internal/replica/clocks"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// A node of another release may leave out fields that this one knows, and have others.
func TestReportOfAnotherRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Dir(SocketPath(dir)), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := opsocket.Listen(SocketPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	served := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"node":"a","leader":"b","sun":{"shines":true},"nodes":[` +
			`{"name":"a","role":"follower","clock_ahead":-7200000000000,"unfit":true},` +
			`{"name":"b","role":"leader"},` +
			`{"name":"c","role":"follower","clock_ahead_ms":7200000,"moon":[1]}]}`))
	})}
	go func() { _ = served.Serve(l) }()
	defer served.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := Status(ctx, dir)
	want := []string{
		"The clock of node a is wrong. It does not lead as long as another node can: set its clock right.",
		"The clock of node c is 2h0m0s ahead of those of the other nodes.",
	}
	if got := r.Clocks(); err != nil || r.Leader != "b" || !slices.Equal(got, want) {
		t.Errorf("%+v, %v; it says %q, want %q", r, err, got, want)
	}
}

// The status names clocks that are a second or more away, and those of nodes that do not lead because of it.
func TestClocksInReport(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Report{
		"": {Nodes: []Line{{Name: "a"}, {Name: "b", ClockAheadMs: 999}, {Name: "c", ClockAheadMs: -999}}},
		"The clock of node b is 1s ahead of those of the other nodes.":                           {Nodes: []Line{{Name: "b", ClockAheadMs: 1000}}},
		"The clock of node b is 1.2s behind those of the other nodes.":                           {Nodes: []Line{{Name: "b", ClockAheadMs: -1249}}},
		"The clock of node b is 40s behind that of node a, and no majority of the nodes agrees.": {ClockBase: "a", Nodes: []Line{{Name: "a"}, {Name: "b", ClockAheadMs: -40_000}}},
	} {
		got := r.Clocks()
		if (want == "" && len(got) > 0) || (want != "" && !slices.Equal(got, []string{want})) {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}

// Two clocks agree if they are at most as far apart as a Reporter is told.
func TestClocksAgreeWithinSpread(t *testing.T) {
	t.Parallel()
	a := said("a", node.Leader, 1, 4)
	a.clock = clocks.Answer{Reading: clocks.Reading{Name: "a"}}
	b := said("b", node.Follower, 2, 4)
	b.clock = clocks.Answer{Reading: clocks.Reading{Name: "b", Ahead: 5 * time.Second, Within: time.Millisecond}, Known: true}
	for spread, base := range map[time.Duration]string{4 * time.Second: "a", 6 * time.Second: ""} {
		if r := report(&node.Status{Name: "a"}, []answered{a, b}, spread); r.ClockBase != base {
			t.Errorf("spread %v: the clocks are compared with that of %q, want %q", spread, r.ClockBase, base)
		}
	}
}
