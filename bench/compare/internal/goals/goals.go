// Package goals compares a run with what it was to reach.
package goals

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/greedy"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/idle"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/notify"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/processors"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/requests"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/routing"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
)

// Of compares a run with what it was to reach.
func Of(r *report.Report) []report.Goal { return append(ofServer(r), ofCluster(r)...) }

// ofServer is about one server.
func ofServer(r *report.Report) []report.Goal {
	var all []report.Goal
	goal := func(work, want string, value, bound float64, ok, atMost bool, format string, args ...any) {
		all = append(all, newGoal(work, want, value, bound, ok, atMost, format, args...))
	}
	ratio := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return a / b
	}
	rate := func(work, name, other string, bound float64) {
		f, ok := r.Median(work, name)
		o, ok2 := r.Median(work, other)
		v := ratio(f.PerSecond, o.PerSecond)
		goal(work, fmt.Sprintf("≥ %.3g × %s", bound, other), v, bound, ok && ok2 && o.PerSecond > 0, false, "%.2f × (%.0f/s : %.0f/s)", v, f.PerSecond, o.PerSecond)
	}
	cpu := func(work, name, otherWork, other string, bound float64) {
		f, ok := r.Median(work, name)
		o, ok2 := r.Median(otherWork, other)
		v := ratio(f.CPUPerMillion, o.CPUPerMillion)
		what := other
		if otherWork != work {
			what = "our " + otherWork
		}
		goal(work, fmt.Sprintf("CPU ≤ %.3g × %s", bound, what), v, bound, ok && ok2, true, "%.2f × (%.2f : %.2f s per million)", v, f.CPUPerMillion, o.CPUPerMillion)
	}
	work := func(verb string, c, k int) string { return fmt.Sprint(verb, " ", load.ShapeOf(c, k, 64)) }

	rate(work("GET", 50, 1), servers.Holdfast, servers.Redis, 0.9)
	cpu(work("GET", 50, 1), servers.Holdfast, work("GET", 50, 1), servers.BareLoop, 1.25)
	cpu(work("GET", 50, 16), servers.Holdfast, work("GET", 50, 16), servers.BareLoop, 2.5)
	cpu(work("GET", 200, 16), servers.Holdfast, work("GET", 200, 16), servers.BareLoop, 2.5)
	cpu(requests.TLSWork(load.ShapeOf(50, 1, 64)), servers.HoldfastTLS, requests.TLSWork(load.ShapeOf(50, 1, 64)), servers.BareTLS, 1.25)
	for _, s := range requests.PolicyShapes {
		v, ok := r.Value(requests.PolicyWork(s), servers.HoldfastPolicy, requests.PolicyCost)
		goal(requests.PolicyWork(s), "CPU ≤ 1.05 × without", v, 1.05, ok, true, "%.3f ×", v)
	}
	rate(work("SET", 50, 1), servers.Holdfast, servers.Redis, 1)
	rate(work("SET", 200, 1), servers.Holdfast, servers.Redis, 1)
	cpu(work("SET", 50, 16), servers.Holdfast, work("GET", 50, 16), servers.Holdfast, 2)
	rate(work("SET", 50, 16), servers.Holdfast, servers.Redis, 1)

	set, ok1 := r.Median(work("SET", 1, 1), servers.Holdfast)
	get, ok2 := r.Median(work("GET", 1, 1), servers.Holdfast)
	commit, ok3 := r.Median(requests.CommitAlone, "Pebble")
	bound := get.P50 + 1.1*commit.P50
	goal(work("SET", 1, 1), "latency ≤ GET's + 1.1 × one commit with pebble.Sync", set.P50, bound, ok1 && ok2 && ok3, true,
		"p50 %.0f µs : %.0f µs (%.0f + 1.1 × %.0f)", set.P50, bound, get.P50, commit.P50)

	for _, work := range routing.Persistent() {
		rate(work, servers.Holdfast, servers.HoldfastNone, 0.6)
		rate(work, servers.Holdfast, servers.NatsSync, 1)
	}
	rate(processors.Work(1), processors.ByTxn, processors.AtLeastOnce, 3)
	for _, keys := range []int{64, 1024} {
		rate(processors.Work(keys), processors.ByTxn, processors.AtLeastOnce, 0.7)
		cpu(processors.Work(keys), processors.ByTxn, processors.Work(keys), processors.AtLeastOnce, 1.5)
		rate(processors.Work(keys), processors.ByState, processors.AtLeastOnce, 0.4)
	}
	rate("fan-out 1 → 100, QoS 0", servers.Holdfast, servers.Mochi, 2)
	rate("fan-out 1 → 100, QoS 1", servers.Holdfast, servers.Mochi, 2)

	single := func(work, what, want string, bound float64, unit string) {
		v, ok := r.Value(work, servers.Holdfast, what)
		goal(work+": "+what, want, v, bound, ok, true, "%.4g %s", v, unit)
	}
	single(idle.Work, "memory each", "≤ 5 KiB, one goroutine", 5, "KiB")
	single(requests.KeysWork, "memory each after overwriting every key twice", "≤ 250 B", 250, "B")
	single(requests.KeysWork, "start", "≤ 3 s", 3, "s")

	const most = 10_000
	last, ok1 := r.Value(notify.Work(most), servers.Holdfast, "SET to the last NOTIFY, median")
	bare, ok2 := r.Value(notify.Work(most), servers.BareLoop, "SET to the last NOTIFY, median")
	goal(notify.Work(most), "last one ≤ 1.3 × bare loop", ratio(last, bare), 1.3, ok1 && ok2, true, "%.2f × (%.1f ms : %.1f ms)", ratio(last, bare), last, bare)
	quiet, ok1 := r.Value(notify.Work(most), servers.Holdfast, "other clients' GET p99, quiet")
	meanwhile, ok2 := r.Value(notify.Work(most), servers.Holdfast, "other clients' GET p99, meanwhile")
	goal(notify.Work(most), "other clients' p99 ≤ 2 × meanwhile", ratio(meanwhile, quiet), 2, ok1 && ok2, true, "%.2f × (%.2f ms : %.2f ms)", ratio(meanwhile, quiet), meanwhile, quiet)

	for _, flood := range greedy.Floods() {
		value := func(what string) (float64, bool) { return r.Value(greedy.Work(flood), servers.Holdfast, what) }
		terms := ""
		if _, ok := value(greedy.Meanwhile + greedy.Apart); ok {
			terms = greedy.Apart
		}
		quiet, ok1 := value(greedy.Quiet + terms)
		if baseline, ok := value(greedy.Baseline + terms); ok {
			quiet = baseline
		}
		meanwhile, ok2 := value(greedy.Meanwhile + terms)
		goal(greedy.Work(flood), "p99 ≤ 5 × quiet", ratio(meanwhile, quiet), 5, ok1 && ok2, true,
			"%.2f × (%.2f ms : %.2f ms)%s", ratio(meanwhile, quiet), meanwhile, quiet, terms)
	}
	return all
}

// newGoal is a goal for a value, which is to be bound at least, or at most. It was measured if ok.
func newGoal(work, want string, value, bound float64, ok, atMost bool, format string, args ...any) report.Goal {
	g := report.Goal{Work: work, Goal: want, Measured: "not measured"}
	if ok {
		met := value >= bound
		if atMost {
			met = value <= bound
		}
		g.Measured, g.Met = fmt.Sprintf(format, args...), &met
	}
	return g
}
