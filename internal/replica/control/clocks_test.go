package control

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/opsocket"
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
	node := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"node":"a","leader":"b","sun":{"shines":true},"nodes":[` +
			`{"name":"a","role":"follower","clock_ahead":-7200000000000,"unfit":true},` +
			`{"name":"b","role":"leader"},` +
			`{"name":"c","role":"follower","clock_ahead_ms":7200000,"moon":[1]}]}`))
	})}
	go func() { _ = node.Serve(l) }()
	defer node.Close()
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
