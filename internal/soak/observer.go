package soak

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

// Sample is one look at the process.
type Sample struct {
	At          time.Duration // since the first client came
	Clients     int64         // that are connected, as the harness counts
	Lives       int64         // connections so far
	Operations  int64         // so far
	Resident    int64         // bytes of memory, as Linux has it
	Heap        int64         // bytes of Go's heap that are in use
	Goroutines  int64
	Descriptors int64
	Disk        int64 // bytes of the data directory
}

func (s Sample) String() string {
	return fmt.Sprintf("%6.0f s: %d clients, %d lives, %d operations; resident %.1f MiB, heap %.1f MiB, %d goroutines, %d descriptors, data %.1f MiB",
		s.At.Seconds(), s.Clients, s.Lives, s.Operations, float64(s.Resident)/(1<<20), float64(s.Heap)/(1<<20), s.Goroutines, s.Descriptors, float64(s.Disk)/(1<<20))
}

// observer is a client that reads the program's own figures.
type observer struct {
	server  *server
	session *client.Session
	cancel  context.CancelFunc
	reader  sync.WaitGroup

	mu      sync.Mutex
	figures map[string]int64 // newest, by topic; under mu
	rounds  chan struct{}    // of capacity 1: the program has begun to publish its figures
}

// The topics of the program's own figures. The program publishes a figure only if it has
// changed, and the uptime, which always has, before the others.
const (
	uptimeTopic     = "$SYS/broker/uptime"
	goroutinesTopic = "$SYS/broker/goroutines"
	heapTopic       = "$SYS/broker/memory/go heap"
)

func newObserver(ctx context.Context, s *server) (*observer, error) {
	session, err := client.DialSession(ctx, s.urls[0], s.options("observer")...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &observer{server: s, session: session, cancel: cancel, figures: map[string]int64{}, rounds: make(chan struct{}, 1)}
	if err := session.Subscribe(ctx, uptimeTopic, goroutinesTopic, heapTopic); err != nil {
		w.close()
		return nil, err
	}
	w.reader.Go(func() {
		for d, err := range session.Messages(ctx) {
			if err != nil {
				return
			}
			w.take(d.Topic, string(d.Payload))
			d.Ack()
		}
	})
	return w, nil
}

func (w *observer) take(topic, payload string) {
	if topic == uptimeTopic {
		select {
		case w.rounds <- struct{}{}:
		default:
		}
		return
	}
	n, err := strconv.ParseInt(payload, 10, 64)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.figures[topic] = n
}

func (w *observer) close() {
	w.cancel()
	_ = w.session.Close()
	w.reader.Wait()
}

// sample looks at the process, with figures that it makes from now on: those between the
// next uptime and the one after it.
func (w *observer) sample(ctx context.Context, r *run) (Sample, error) {
	select { // of a round that has begun before
	case <-w.rounds:
	default:
	}
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for range 2 {
		select {
		case <-w.rounds:
		case <-ctx.Done():
			return Sample{}, context.Cause(ctx)
		case <-late.C:
			return Sample{}, fmt.Errorf("the program has published no figures on $SYS for a minute; its output:\n%s", w.server.Output())
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Sample{Clients: r.inside.Load(), Lives: r.lives.Load(), Operations: r.done.Load(), Goroutines: w.figures[goroutinesTopic], Heap: w.figures[heapTopic]}
	var err error
	if s.Resident, err = resident(w.server.ID()); err != nil {
		return s, err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.server.ID()))
	s.Descriptors = int64(len(open))
	s.Disk = size(w.server.data)
	return s, err
}

// rest looks at the process until what belonged to clients is gone, or for a minute.
func (w *observer) rest(ctx context.Context, r *run, before Sample) (s Sample, err error) {
	for began := time.Now(); time.Since(began) < time.Minute; {
		if s, err = w.sample(ctx, r); err != nil || isRest(before, s) {
			break
		}
	}
	return s, err
}

// spare is how many goroutines and descriptors the process may have more than before the
// clients came: of files and workers that it keeps for the next ones.
const spare = 24

func isRest(before, after Sample) bool {
	return after.Goroutines <= before.Goroutines+spare && after.Descriptors <= before.Descriptors+spare
}

func resident(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		if rest, found := strings.CutPrefix(line, "VmRSS:"); found {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmRSS", pid)
}

// size is how many bytes the files of a directory have.
func size(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil { // it may be gone by now
				n += info.Size()
			}
		}
		return nil
	})
	return n
}
