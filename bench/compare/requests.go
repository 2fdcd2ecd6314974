package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// shape is how many connections ask how much at once.
type shape struct {
	connections, inflight, valueSize int
}

func (s shape) String() string {
	size := fmt.Sprintf("%d B", s.valueSize)
	if s.valueSize >= 1024 {
		size = fmt.Sprintf("%d KiB", s.valueSize>>10)
	}
	return fmt.Sprintf("%d × %d, %s", s.connections, s.inflight, size)
}

var shapes = []shape{
	{1, 1, 64}, {50, 1, 64}, {50, 16, 64}, {200, 1, 64}, {200, 16, 64},
	{50, 1, 4096}, {50, 16, 4096},
}

// keyCount is how many keys the requests are spread over.
const keyCount = 1000

// keyName gives a key of 32 bytes.
func keyName(i int) string { return fmt.Sprintf("bench-key-%022d", i) }

// dial connects to a server in its own way.
func (t *target) dial(i int, s *script) (client, error) {
	switch t.protocol {
	case speaksRedis:
		return dialRedis(t.addr, s)
	case speaksNATS:
		return dialNATS(t.addr, i, s)
	case speaksEtcd:
		return dialEtcd(t.addr, s)
	default:
		return dialStore(t.addr, fmt.Sprint("client-", i), s)
	}
}

// dialAll gives each of n connections its share of the keys.
func (t *target) dialAll(n int, s script, keys []string) ([]client, error) {
	var all []client
	for i := range n {
		share := len(keys) / n
		own := s
		own.keys = keys[i*share : (i+1)*share]
		c, err := t.dial(i, &own)
		if err != nil {
			closeAll(all)
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func closeAll(clients []client) {
	for _, c := range clients {
		c.close()
	}
}

// preload sets every key once.
func (t *target) preload(keys []string, value string, connections, inflight int) error {
	clients, err := t.dialAll(connections, script{verb: "SET", value: value, window: inflight}, keys)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	passes := (len(keys)/connections + inflight - 1) / inflight
	_, _, err = loop(clients, 5*time.Minute, func(round int, _ time.Time) bool { return round < passes })
	return err
}

// loop runs the clients at once until more says no, which it is asked before
// each window, and gives how long the windows took. It takes longer than limit
// only to fail.
func loop(clients []client, limit time.Duration, more func(round int, now time.Time) bool) (*histogram, time.Duration, error) {
	var (
		wait sync.WaitGroup
		mu   sync.Mutex
		all  histogram
		errs []error
	)
	start := time.Now()
	for _, c := range clients {
		wait.Go(func() {
			var h histogram
			var err error
			stuck := time.AfterFunc(limit, c.close)
			defer stuck.Stop()
			for i := 0; err == nil && more(i, time.Now()); i++ {
				err = c.exchange(&h)
			}
			mu.Lock()
			defer mu.Unlock()
			all.merge(&h)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wait.Wait()
	if len(errs) > 0 {
		return nil, 0, errs[0]
	}
	return &all, time.Since(start), nil
}

// measure runs the clients for a while and gives the figures.
func (t *target) measure(clients []client, d time.Duration) (Figures, error) {
	until := func(d time.Duration) func(int, time.Time) bool {
		end := time.Now().Add(d)
		return func(_ int, now time.Time) bool { return now.Before(end) }
	}
	if _, _, err := loop(clients, d+patience, until(d/5)); err != nil {
		return Figures{}, err
	}
	before := t.procs.cpu()
	h, elapsed, err := loop(clients, d+patience, until(d))
	if err != nil {
		return Figures{}, err
	}
	return figures(h, elapsed, t.procs.cpu()-before), nil
}

// round measures one kind of request once.
func (t *target) round(verb string, s shape, keys []string, d time.Duration) (Figures, error) {
	clients, err := t.dialAll(s.connections, script{verb: verb, value: strings.Repeat("v", s.valueSize), window: s.inflight}, keys)
	if err != nil {
		return Figures{}, err
	}
	defer closeAll(clients)
	return t.measure(clients, d)
}

func keyNames(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = keyName(i)
	}
	return keys
}

// requests compares GET and SET. The servers take turns in every round. Those
// that keep nothing on disk answer only GET: their SET would be no comparison.
func (b *bench) requests(ctx context.Context) error {
	var targets []*target
	for _, name := range []string{holdfast, bareLoop, redis, mochi, mosquitto, natsDefault, natsSync, etcd} {
		if t := b.lab.start(ctx, name); t != nil {
			defer t.stop()
			targets = append(targets, t)
		}
	}
	keys := keyNames(keyCount)
	if err := b.verifyBare(targets); err != nil {
		return err
	}
	size := 0
	for _, s := range b.shapes() {
		if s.valueSize != size {
			size = s.valueSize
			for _, t := range targets {
				if err := t.preload(keys, strings.Repeat("v", size), 1, 50); err != nil {
					return fmt.Errorf("%s: setting the keys: %w", t.name, err)
				}
			}
		}
		if err := b.shape(ctx, targets, s, keys); err != nil {
			return err
		}
	}
	for _, t := range targets {
		b.report.measure("requests", t.name, "peak memory", float64(t.procs.memory("VmHWM"))/(1<<20), "MiB")
	}
	return nil
}

func (b *bench) shape(ctx context.Context, targets []*target, s shape, keys []string) error {
	commits := newCommitter(b.lab.dir)
	defer commits.close()
	for range b.report.Rounds {
		for _, verb := range []string{"GET", "SET"} {
			for _, t := range targets {
				if !t.compares(verb, s) {
					continue
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				f, err := t.round(verb, s, keys, b.roundTime)
				b.report.add(fmt.Sprint(verb, " ", s), t.name, f, err)
			}
		}
		if s.connections == 1 {
			f, err := commits.round(b.roundTime)
			b.report.add(commitAlone, "Pebble", f, err)
		}
	}
	return nil
}

// compares says whether a server's answer to verb can be compared: a SET that isn't
// kept on disk can't, and how NATS syncs does not affect a GET. The largest load is
// for servers that handle it in less than a second.
func (t *target) compares(verb string, s shape) bool {
	if s.connections*s.inflight > 1000 && t.name != holdfast && t.name != bareLoop && t.name != redis {
		return false
	}
	return verb == "GET" && t.name != natsSync || verb == "SET" && t.durability != ""
}

// verifyBare compares what the bare loop and Holdfast answer: as many bytes, or
// a ratio of their costs would mean nothing.
func (b *bench) verifyBare(targets []*target) error {
	sizes := map[string]int{}
	for _, t := range targets {
		if t.name != holdfast && t.name != bareLoop {
			continue
		}
		for _, verb := range []string{"SET", "GET"} {
			n, err := answerSize(t, verb)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			sizes[t.name+verb] = n
		}
	}
	for _, verb := range []string{"SET", "GET"} {
		if h, l := sizes[holdfast+verb], sizes[bareLoop+verb]; h != 0 && l != 0 && h != l {
			return fmt.Errorf("the bare loop answers a %s with %d bytes, Holdfast with %d: bring wire.Answers up to date", verb, l, h)
		}
	}
	return nil
}

// answerSize counts the bytes that answer one request.
func answerSize(t *target, verb string) (int, error) {
	c, err := dialStore(t.addr, "sizes", &script{verb: verb, keys: keyNames(1), value: strings.Repeat("v", 64), window: 1})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	c.out = c.feed.next(c.out)
	if err := c.send(); err != nil {
		return 0, err
	}
	bytes := 0
	for packets := 0; packets < 2; { // PUBACK and response
		_, _, n := c.packet()
		if n > 0 {
			packets++
			bytes += n
		} else if err := c.fill(); err != nil {
			return 0, err
		}
	}
	return bytes, nil
}
