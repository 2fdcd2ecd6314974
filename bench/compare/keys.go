package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"
)

const keysWork = "many keys"

// manyKeys fills a store with keys of 32 bytes and values of 64, overwrites each
// twice, and measures memory, requests at that size, and the start.
func (b *bench) manyKeys(ctx context.Context) error {
	n := 1_000_000
	if b.quick {
		n = 20_000
	}
	keys := keyNames(n)
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, name := range []string{holdfast, redis} {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := b.lab.start(ctx, name)
		if t == nil {
			continue
		}
		err := b.manyKeysAt(ctx, t, keys)
		t.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *bench) manyKeysAt(ctx context.Context, t *target, keys []string) error {
	m := func(what string, value float64, unit string) { b.report.measure(keysWork, t.name, what, value, unit) }
	before := t.procs.memory("VmRSS")
	each := func() float64 { return float64(t.procs.memory("VmRSS")-before) / float64(len(keys)) }
	m("keys", float64(len(keys)), "")
	value := strings.Repeat("v", 64)
	for pass := range 3 {
		start := time.Now()
		if err := t.preload(keys, value, 50, 40); err != nil {
			return err
		}
		m(fmt.Sprintf("pass %d of SET over every key", pass+1), float64(len(keys))/time.Since(start).Seconds(), "per second")
	}
	settle()
	m("memory each after overwriting every key twice", each(), "B")
	s := shape{50, 16, 64}
	for range b.report.Rounds {
		for _, verb := range []string{"GET", "SET"} {
			f, err := t.round(verb, s, keys, b.roundTime)
			b.report.add(fmt.Sprintf("%s %v, %d keys", verb, s, len(keys)), t.name, f, err)
		}
	}
	m("peak memory", float64(t.procs.memory("VmHWM"))/(1<<20), "MiB")
	var starts []float64
	for range min(b.report.Rounds, 3) {
		took, err := t.restart(ctx, b.lab, syscall.SIGTERM)
		if err != nil {
			return err
		}
		starts = append(starts, took.Seconds())
	}
	m("start", median(starts), "s")
	took, err := t.restart(ctx, b.lab, syscall.SIGKILL)
	if err != nil {
		return err
	}
	m("start after SIGKILL", took.Seconds(), "s")
	settle()
	m("memory each after a start", each(), "B")
	return nil
}

// restart ends a server and starts it again with what it has on disk. It gives
// how long the start took, until requests are accepted.
func (t *target) restart(ctx context.Context, l *laboratory, sig syscall.Signal) (time.Duration, error) {
	for _, p := range t.procs {
		p.end(sig)
	}
	start := time.Now()
	again, err := t.begin(ctx, l, t.dir)
	if err != nil {
		return 0, err
	}
	t.addr, t.procs = again.addr, again.procs
	return time.Since(start), nil
}
