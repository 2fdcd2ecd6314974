// Package notify measures notifications to the watchers of one key.
package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/bystanders"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// Work names the notifications to n watchers.
func Work(n int) string { return fmt.Sprintf("NOTIFY to %d watchers", n) }

// watchCounts is how many connections watch the key.
func watchCounts(run *work.Run) []int {
	if run.Quick {
		return []int{1, 100, 1000}
	}
	return []int{1, 100, 10_000}
}

// Measure measures how long after a SET its watchers hear of it, and what other
// clients feel meanwhile. The bare loop writes the same bytes to one after the
// other, without an fsync before.
//
// Server, watchers and the others share the processors. How much of what the
// others feel is that, the same requests show when a bare loop answers them that
// has nothing else to do: no server can do better without a processor of its own.
func Measure(ctx context.Context, run *work.Run) error {
	idle := run.Lab.Start(ctx, servers.BareLoop)
	if idle != nil {
		defer idle.Stop()
		if err := load.Preload(idle, load.KeyNames(100), strings.Repeat("v", 64), 1, 50); err != nil {
			return err
		}
	}
	sizes := map[string]int{}
	for _, name := range []string{servers.Holdfast, servers.BareLoop} {
		t := run.Lab.Start(ctx, name)
		if t == nil {
			continue
		}
		for _, n := range watchCounts(run) {
			size, err := notifyAt(ctx, run, t, idle, n)
			if err != nil {
				t.Stop()
				return fmt.Errorf("%s, %d watchers: %w", name, n, err)
			}
			sizes[name] = size
		}
		t.Stop()
	}
	if h, l := sizes[servers.Holdfast], sizes[servers.BareLoop]; h != 0 && l != 0 && h != l {
		return fmt.Errorf("a notification of the bare loop has %d bytes, Holdfast's %d: bring wire.AppendNotification up to date", l, h)
	}
	return nil
}

// watchers are connections that watch one key, read by one thread with epoll:
// a goroutine each would measure Go's scheduler on this side.
type watchers struct {
	sockets []*client.Socket // by file descriptor
	poll    int
	count   atomic.Int64
	size    atomic.Int64 // bytes of the last notification
	first   atomic.Int64 // when the first and the last of a round came, by process.Monotonic
	last    atomic.Int64
	want    int64
	round   chan struct{} // a round's last notification has come
	stop    atomic.Bool
	err     error // once done is closed
	done    chan struct{}
}

const watchedKey = "bench-watched-key-00000000000000"

func newWatchers(addr string, n int) (*watchers, error) {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	w := &watchers{poll: poll, want: int64(n), round: make(chan struct{}, 1), done: make(chan struct{})}
	scratch := make([]byte, 4096)
	for i := range n {
		s, err := client.DialSocket(addr)
		if err != nil {
			w.release()
			return nil, err
		}
		for len(w.sockets) <= s.Fd {
			w.sockets = append(w.sockets, nil)
		}
		w.sockets[s.Fd] = s
		id := fmt.Sprintf("watcher-%05d", i)
		out := wire.AppendConnect(nil, id, 0, 0)
		out = wire.AppendSubscribe(out, 1, client.ResponseTopic(id), 1)
		out = wire.AppendRequest(out, 2, client.ResponseTopic(id), "", "KEYNOTIFY", watchedKey)
		err = errors.Join(s.Write(out), s.Await(scratch, 4), // CONNACK, SUBACK, PUBACK, response
			s.Write(wire.AppendAck(nil, wire.Puback, 1)),
			unix.SetNonblock(s.Fd, true),
			unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, s.Fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.Fd)}))
		if err != nil {
			w.release()
			return nil, fmt.Errorf("watcher %d: %w", i, err)
		}
	}
	go w.receive()
	return w, nil
}

func (w *watchers) close() {
	w.stop.Store(true)
	<-w.done
	w.release()
}

// release closes the sockets; no goroutine reads them any more.
func (w *watchers) release() {
	for _, s := range w.sockets {
		if s != nil {
			s.Close()
		}
	}
	unix.Close(w.poll)
}

// receive takes the notifications and acknowledges each.
func (w *watchers) receive() {
	defer close(w.done)
	var events [256]unix.EpollEvent
	scratch := make([]byte, 64<<10)
	var ack []byte
	for !w.stop.Load() {
		n, err := unix.EpollWait(w.poll, events[:], 100)
		if err != nil && err != unix.EINTR {
			w.err = err
			return
		}
		for _, e := range events[:max(n, 0)] {
			s := w.sockets[e.Fd]
			ack = ack[:0]
			err := s.Read(scratch, func(header byte, body []byte) {
				if header&0xF0 == wire.Publish {
					var m wire.Message
					m.Parse(header, body)
					ack = wire.AppendAck(ack, wire.Puback, m.ID)
					w.size.Store(int64(len(body)))
					w.arrived()
				}
			})
			if err == nil && len(ack) > 0 {
				err = s.Write(ack)
			}
			if err != nil && err != unix.EAGAIN {
				w.err = err
				return
			}
		}
	}
}

func (w *watchers) arrived() {
	now := process.Monotonic()
	switch n := w.count.Add(1); {
	case w.want == 1:
		w.first.Store(now)
		fallthrough
	case n%w.want == 0:
		w.last.Store(now)
		w.round <- struct{}{}
	case n%w.want == 1:
		w.first.Store(now)
	}
}

// notifyAt measures t with n watchers. idle may be nil.
func notifyAt(ctx context.Context, run *work.Run, t, idle *servers.Target, n int) (size int, err error) {
	// Before there are watchers: the bare loop has one value for all keys.
	if err := load.Preload(t, load.KeyNames(100), strings.Repeat("v", 64), 1, 50); err != nil {
		return 0, err
	}
	w, err := newWatchers(t.Addr, n)
	if err != nil {
		return 0, err
	}
	defer w.close()
	rounds, requests, err := disturb(ctx, run, t, w, t)
	if err != nil {
		return 0, err
	}
	var first, last latency.Histogram
	for _, r := range rounds {
		first.Add(r.first-r.start, 1)
		last.Add(r.last-r.start, 1)
	}
	quiet, meanwhile := sortRequests(requests, rounds)
	m := func(what string, h *latency.Histogram, p float64) {
		run.Report.Measure(Work(n), t.Name, what, report.Microseconds(h.Percentile(p))/1e3, "ms")
	}
	m("SET to the first NOTIFY, median", &first, 0.5)
	m("SET to the last NOTIFY, median", &last, 0.5)
	m("SET to the last NOTIFY, worst", &last, 1-1e-9)
	m("other clients' GET p99, quiet", quiet, 0.99)
	m("other clients' GET p99, meanwhile", meanwhile, 0.99)
	if idle != nil {
		rounds, requests, err = disturb(ctx, run, t, w, idle)
		if err != nil {
			return 0, err
		}
		_, meanwhile = sortRequests(requests, rounds)
		m("GET p99 from a bare loop that does nothing else, meanwhile", meanwhile, 0.99)
	}
	return int(w.size.Load()), nil
}

// disturb has t notify its watchers again and again while bystanders ask a
// server, t or another.
func disturb(ctx context.Context, run *work.Run, t *servers.Target, w *watchers, asks *servers.Target) (rounds []notified, requests []bystanders.Request, err error) {
	writer, err := load.Dial(t, 99, &client.Script{Verb: "SET", Keys: []string{watchedKey}, Value: strings.Repeat("v", 64), Window: 1})
	if err != nil {
		return nil, nil, err
	}
	defer writer.Close()
	by, err := bystanders.Start(asks.Addr, false)
	if err != nil {
		return nil, nil, err
	}
	time.Sleep(2 * run.RoundTime) // quiet
	rounds, err = w.rounds(ctx, writer, 4*run.Report.Rounds)
	requests, err2 := by.Stop()
	return rounds, requests, errors.Join(err, err2)
}

// notified is one round: when the SET left, and when the first and the last
// notification had come, since the epoch of the clock that process.Monotonic reads.
type notified struct{ start, first, last time.Duration }

// sortRequests counts the bystanders' requests that were made before the first
// round, and those that were under way while notifications were.
func sortRequests(requests []bystanders.Request, rounds []notified) (quiet, meanwhile *latency.Histogram) {
	quiet, meanwhile = new(latency.Histogram), new(latency.Histogram)
	for _, r := range requests {
		from, to := time.Duration(r.At), time.Duration(r.At+r.Took)
		switch {
		case to < rounds[0].start:
			quiet.Add(to-from, 1)
		case slices.ContainsFunc(rounds, func(n notified) bool { return from < n.last && to > n.start }):
			meanwhile.Add(to-from, 1)
		}
	}
	return quiet, meanwhile
}

// rounds sets the key n times, and each time waits until every watcher has heard
// of it.
func (w *watchers) rounds(ctx context.Context, writer client.Client, n int) (all []notified, err error) {
	for range n {
		r := notified{start: time.Duration(process.Monotonic())}
		var h latency.Histogram
		if err := writer.Exchange(&h); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.round:
		case <-w.done:
			return nil, fmt.Errorf("watchers: %w", w.err)
		case <-time.After(client.Patience):
			return nil, fmt.Errorf("%d notifications have come, not %d each round", w.count.Load(), w.want)
		}
		r.first, r.last = time.Duration(w.first.Load()), time.Duration(w.last.Load())
		all = append(all, r)
		time.Sleep(20 * time.Millisecond)
	}
	return all, nil
}
