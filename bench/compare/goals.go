package main

import "fmt"

// Goal is a target for a row, with the measured value.
type Goal struct {
	Work     string `json:"work"`
	Goal     string `json:"goal"`
	Measured string `json:"measured"`
	Met      *bool  `json:"met"` // nil: not measured in this run
}

// goals compares the run with what it was to reach.
func (r *Report) goals() []Goal {
	var all []Goal
	goal := func(work, want string, value, bound float64, ok, atMost bool, format string, args ...any) {
		g := Goal{Work: work, Goal: want, Measured: "not measured"}
		if ok {
			met := value >= bound
			if atMost {
				met = value <= bound
			}
			g.Measured, g.Met = fmt.Sprintf(format, args...), &met
		}
		all = append(all, g)
	}
	ratio := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return a / b
	}
	rate := func(work, name, other string, bound float64) {
		f, ok := r.median(work, name)
		o, ok2 := r.median(work, other)
		v := ratio(f.PerSecond, o.PerSecond)
		goal(work, fmt.Sprintf("≥ %.3g × %s", bound, other), v, bound, ok && ok2 && o.PerSecond > 0, false, "%.2f × (%.0f/s : %.0f/s)", v, f.PerSecond, o.PerSecond)
	}
	cpu := func(work, name, otherWork, other string, bound float64) {
		f, ok := r.median(work, name)
		o, ok2 := r.median(otherWork, other)
		v := ratio(f.CPUPerMillion, o.CPUPerMillion)
		what := other
		if otherWork != work {
			what = "our " + otherWork
		}
		goal(work, fmt.Sprintf("CPU ≤ %.3g × %s", bound, what), v, bound, ok && ok2, true, "%.2f × (%.2f : %.2f s per million)", v, f.CPUPerMillion, o.CPUPerMillion)
	}
	work := func(verb string, c, k int) string { return fmt.Sprint(verb, " ", shape{c, k, 64}) }

	rate(work("GET", 50, 1), holdfast, redis, 0.9)
	cpu(work("GET", 50, 1), holdfast, work("GET", 50, 1), bareLoop, 1.25)
	cpu(work("GET", 50, 16), holdfast, work("GET", 50, 16), bareLoop, 2.5)
	cpu(work("GET", 200, 16), holdfast, work("GET", 200, 16), bareLoop, 2.5)
	cpu(tlsWork(shape{50, 1, 64}), holdfastTLS, tlsWork(shape{50, 1, 64}), bareTLS, 1.25)
	for _, s := range policyShapes {
		v, ok := r.value(policyWork(s), holdfastPolicy, policyCost)
		goal(policyWork(s), "CPU ≤ 1.05 × without", v, 1.05, ok, true, "%.3f ×", v)
	}
	rate(work("SET", 50, 1), holdfast, redis, 1)
	rate(work("SET", 200, 1), holdfast, redis, 1)
	cpu(work("SET", 50, 16), holdfast, work("GET", 50, 16), holdfast, 2)
	rate(work("SET", 50, 16), holdfast, redis, 1)

	set, ok1 := r.median(work("SET", 1, 1), holdfast)
	get, ok2 := r.median(work("GET", 1, 1), holdfast)
	commit, ok3 := r.median(commitAlone, "Pebble")
	bound := get.P50 + 1.1*commit.P50
	goal(work("SET", 1, 1), "latency ≤ GET's + 1.1 × one commit with pebble.Sync", set.P50, bound, ok1 && ok2 && ok3, true,
		"p50 %.0f µs : %.0f µs (%.0f + 1.1 × %.0f)", set.P50, bound, get.P50, commit.P50)

	for _, s := range routings() {
		if s.expiry > 0 {
			rate(s.name, holdfast, holdfastNone, 0.6)
			rate(s.name, holdfast, natsSync, 1)
		}
	}
	rate(processorWork(1), byTxn, atLeastOnce, 3)
	for _, keys := range []int{64, 1024} {
		rate(processorWork(keys), byTxn, atLeastOnce, 0.7)
		cpu(processorWork(keys), byTxn, processorWork(keys), atLeastOnce, 1.5)
		rate(processorWork(keys), byState, atLeastOnce, 0.4)
	}
	rate("fan-out 1 → 100, QoS 0", holdfast, mochi, 2)
	rate("fan-out 1 → 100, QoS 1", holdfast, mochi, 2)

	single := func(work, what, want string, bound float64, unit string) {
		v, ok := r.value(work, holdfast, what)
		goal(work+": "+what, want, v, bound, ok, true, "%.4g %s", v, unit)
	}
	single(idleWork, "memory each", "≤ 5 KiB, one goroutine", 5, "KiB")
	single(keysWork, "memory each after overwriting every key twice", "≤ 250 B", 250, "B")
	single(keysWork, "start", "≤ 3 s", 3, "s")

	const most = 10_000
	last, ok1 := r.value(notifyWork(most), holdfast, "SET to the last NOTIFY, median")
	bare, ok2 := r.value(notifyWork(most), bareLoop, "SET to the last NOTIFY, median")
	goal(notifyWork(most), "last one ≤ 1.3 × bare loop", ratio(last, bare), 1.3, ok1 && ok2, true, "%.2f × (%.1f ms : %.1f ms)", ratio(last, bare), last, bare)
	quiet, ok1 := r.value(notifyWork(most), holdfast, "other clients' GET p99, quiet")
	meanwhile, ok2 := r.value(notifyWork(most), holdfast, "other clients' GET p99, meanwhile")
	goal(notifyWork(most), "other clients' p99 ≤ 2 × meanwhile", ratio(meanwhile, quiet), 2, ok1 && ok2, true, "%.2f × (%.2f ms : %.2f ms)", ratio(meanwhile, quiet), meanwhile, quiet)

	for _, g := range greedies {
		quiet, ok1 := r.value(greedyWork(g.what), holdfast, greedyQuiet)
		meanwhile, ok2 := r.value(greedyWork(g.what), holdfast, greedyMeanwhile)
		elsewhere, _ := r.value(greedyWork(g.what), holdfast, greedyElsewhere)
		yielding, _ := r.value(greedyWork(g.what), holdfast, greedyMeanwhile+greedyYielding)
		goal(greedyWork(g.what), "p99 ≤ 5 × quiet", ratio(meanwhile, quiet), 5, ok1 && ok2, true,
			"%.2f × quiet, %.2f × an idle bare loop's meanwhile (%.2f : %.2f : %.2f ms); %.2f × quiet with the flood's clients yielding", ratio(meanwhile, quiet), ratio(meanwhile, elsewhere), meanwhile, quiet, elsewhere, ratio(yielding, quiet))
	}
	return all
}
