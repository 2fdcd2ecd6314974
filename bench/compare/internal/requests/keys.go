package requests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
)

// KeysWork names what is measured with many keys.
const KeysWork = "many keys"

// ManyKeys fills a store with keys of 32 bytes and values of 64, overwrites each
// twice, and measures memory, requests at that size, and the start.
func ManyKeys(ctx context.Context, run *work.Run) error {
	n := 1_000_000
	if run.Quick {
		n = 20_000
	}
	keys := load.KeyNames(n)
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, name := range []string{servers.Holdfast, servers.Redis} {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := run.Lab.Start(ctx, name)
		if t == nil {
			continue
		}
		err := manyKeysAt(ctx, run, t, keys)
		t.Stop()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func manyKeysAt(ctx context.Context, run *work.Run, t *servers.Target, keys []string) error {
	m := func(what string, value float64, unit string) { run.Report.Measure(KeysWork, t.Name, what, value, unit) }
	before := t.Procs.Memory("VmRSS")
	each := func() float64 { return float64(t.Procs.Memory("VmRSS")-before) / float64(len(keys)) }
	m("keys", float64(len(keys)), "")
	value := strings.Repeat("v", 64)
	for pass := range 3 {
		start := time.Now()
		if err := load.Preload(t, keys, value, 50, 40); err != nil {
			return err
		}
		m(fmt.Sprintf("pass %d of SET over every key", pass+1), float64(len(keys))/time.Since(start).Seconds(), "per second")
	}
	servers.Settle()
	m("memory each after overwriting every key twice", each(), "B")
	s := load.ShapeOf(50, 16, 64)
	for range run.Report.Rounds {
		for _, verb := range []string{"GET", "SET"} {
			f, err := load.Round(t, verb, s, keys, run.RoundTime)
			run.Report.Add(fmt.Sprintf("%s %v, %d keys", verb, s, len(keys)), t.Name, f, err)
		}
	}
	m("peak memory", float64(t.Procs.Memory("VmHWM"))/(1<<20), "MiB")
	var starts []float64
	for range min(run.Report.Rounds, 3) {
		took, err := t.Restart(ctx, run.Lab, syscall.SIGTERM)
		if err != nil {
			return err
		}
		starts = append(starts, took.Seconds())
	}
	m("start", report.Median(starts), "s")
	took, err := t.Restart(ctx, run.Lab, syscall.SIGKILL)
	if err != nil {
		return err
	}
	m("start after SIGKILL", took.Seconds(), "s")
	servers.Settle()
	m("memory each after a start", each(), "B")
	return nil
}
