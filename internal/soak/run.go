package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Options configures a run. Zero fields but Binary and Dir mean their default.
type Options struct {
	Binary string        // the built program
	Dir    string        // for data, configuration and certificates
	For    time.Duration // how long clients come and go; default an hour
	// Clients is how many clients are there at a time, about; default 2,000. A fifth of
	// them is always between two connections.
	Clients int
	Life    time.Duration // the longest life of one connection; default two minutes
	Pause   time.Duration // of a client between two operations; default two seconds
	Sample  time.Duration // between two looks at the process; default 10 seconds
	Seed    uint64
	Log     func(format string, args ...any)
}

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	set(&o.For, time.Hour)
	set(&o.Life, 2*time.Minute)
	set(&o.Pause, 2*time.Second)
	set(&o.Sample, 10*time.Second)
	if o.Clients == 0 {
		o.Clients = 2000
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return o
}

// run is one run under way.
type run struct {
	Options
	server  *server
	inside  atomic.Int64 // clients that are connected
	lives   atomic.Int64 // connections so far
	done    atomic.Int64 // operations so far
	mu      sync.Mutex
	failed  map[string]int // what went wrong, how often; under mu
	samples []Sample
}

// Run runs the program and its clients, and reports. The error is of a run that could
// not be made; what the program did wrong is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &run{Options: o.withDefaults(), failed: map[string]int{}}
	s, err := startServer(r.Binary, r.Dir)
	if err != nil {
		return nil, err
	}
	defer s.Kill()
	r.server = s
	watch, err := newObserver(ctx, s)
	if err != nil {
		return nil, err
	}
	defer watch.close()
	before, err := watch.sample(ctx, r)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	lives, end := context.WithTimeout(ctx, r.For)
	defer end()
	var clients sync.WaitGroup
	for i := range r.Clients {
		clients.Go(func() { r.live(lives, i) })
	}
	tick := time.NewTicker(r.Sample)
	defer tick.Stop()
	for lives.Err() == nil {
		select {
		case <-tick.C:
		case <-lives.Done():
			continue
		case <-s.Ended():
			return nil, fmt.Errorf("the program ended: %v; its output:\n%s", s.State(), s.Output())
		}
		sample, err := watch.sample(ctx, r)
		if err != nil {
			return nil, err
		}
		sample.At = time.Since(began)
		r.samples = append(r.samples, sample)
		r.Log("%v", sample)
	}
	clients.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	after, err := watch.rest(ctx, r, before)
	if err != nil {
		return nil, err
	}
	watch.close()
	if !s.Stop(process.Patience) {
		r.fail(errors.New("the program did not stop in time"))
	}
	return r.report(before, after), nil
}

// live is the life of one client: connections, one after the other.
func (r *run) live(ctx context.Context, i int) {
	random := rand.New(rand.NewPCG(r.Seed, uint64(i)))
	kind := kinds[i%variety]
	sleep(ctx, time.Duration(random.Int64N(int64(r.Life/4))))
	for n := 0; ctx.Err() == nil; n++ {
		length := r.Life/10 + time.Duration(random.Int64N(int64(r.Life*9/10)))
		life, end := context.WithTimeout(ctx, length)
		v := &visit{run: r, random: random, client: i, number: n, id: fmt.Sprintf("soak-%d", i), ctx: life}
		r.lives.Add(1)
		if err := kind(v); err != nil && life.Err() == nil {
			r.fail(err)
		}
		end()
		sleep(ctx, time.Duration(random.Int64N(int64(r.Life/5))))
	}
}

// fail counts what went wrong.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := changing.ReplaceAllString(err.Error(), "…")
	if r.failed[text]++; r.failed[text] == 1 {
		r.Log("%v", err)
	}
}

// changing are the parts of an error that differ from client to client.
var changing = regexp.MustCompile(`soak-\d+|127\.0\.0\.1:\d+|\d{4,}`)

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
