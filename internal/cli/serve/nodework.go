package serve

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/clustered"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

const (
	lookInterval = 200 * time.Millisecond // at what a node lacks
	// workPause is between two lines of the log about the same work, and before the first one.
	workPause = 10 * time.Second
	// shownLag is how many entries a node lacks at least that catches up: as many as make it not ready.
	shownLag = 10_000
)

// nodeWork shows what a node has to do before it can serve clients or follow: on a terminal in a line,
// and in the log every workPause. Its methods are safe for concurrent use.
type nodeWork struct {
	line *output.Progress
	log  *slog.Logger
	now  func() time.Time // time.Now, but in tests

	mu   sync.Mutex
	what string    // guarded by mu: the message of the work that was shown last
	next time.Time // guarded by mu: when the log has its next line
}

func newNodeWork(line *output.Progress, log *slog.Logger) *nodeWork {
	return &nodeWork{line: line, log: log, now: time.Now}
}

// show shows work: its message and attributes in the log, and text on a terminal.
func (w *nodeWork) show(text, message string, args ...any) {
	w.line.Show("%s", text)
	w.mu.Lock()
	now := w.now()
	if w.what != message {
		w.what, w.next = message, now.Add(workPause)
	}
	due := !now.Before(w.next)
	if due {
		w.next = now.Add(workPause)
	}
	w.mu.Unlock()
	if due {
		w.log.Info(message, args...)
	}
}

// none says that there is no work.
func (w *nodeWork) none() {
	w.line.Erase()
	w.mu.Lock()
	w.what = ""
	w.mu.Unlock()
}

func (w *nodeWork) readsLog(dir string, bytes int64) {
	w.show(fmt.Sprintf("reading the cluster's log in %s: %d MiB", dir, bytes>>20), "reading the cluster's log", "bytes", bytes)
}

func (w *nodeWork) readsRows(dir string, rows int64) {
	w.show(fmt.Sprintf("reading the data in %s: %d rows", dir, rows), "reading the data", "rows", rows)
}

// watch looks at what a node lacks until ctx ends.
func (w *nodeWork) watch(ctx context.Context, n *clustered.Node) {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s := n.Status()
			w.look(&s, n.Server() != nil)
		case <-ctx.Done():
			w.line.End()
			return
		}
	}
}

// look shows what a node lacks, given whether its server serves clients.
func (w *nodeWork) look(s *node.Status, serves bool) {
	switch {
	case s.Role == node.Receiving:
		w.show(fmt.Sprintf("getting all data from the leader: %d of %d MiB (%d %%)", s.Received>>20, s.ReceiveBytes>>20, 100*s.Received/max(1, s.ReceiveBytes)),
			"getting all data from the leader", "bytes", s.Received, "of", s.ReceiveBytes)
	case s.Role == node.Leader && !serves: // it reads its rows, or is about to
	case s.Role != node.Leader && s.LagKnown && s.Lag >= shownLag:
		w.show(fmt.Sprintf("getting what was written meanwhile: %d entries of the log are missing", s.Lag), "getting what was written meanwhile", "missing_entries", s.Lag)
	default:
		w.none()
	}
}
