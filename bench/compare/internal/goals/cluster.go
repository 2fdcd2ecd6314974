package goals

import (
	"fmt"
	"slices"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/cluster"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
)

// pairs are the ratios of two servers in the rounds of a run, in which they took turns, from the lowest on.
// What changes between rounds, on a machine that others use as well, is not in them. nil: not each
// round of both has given figures.
func pairs(r *report.Report, work, a, b string, value func(report.Figures) float64) (ratios []float64) {
	of, by := r.Row(work, a).Rounds, r.Row(work, b).Rounds
	if len(of) != len(by) {
		return nil
	}
	for i := range of {
		if value(by[i]) == 0 {
			return nil
		}
		ratios = append(ratios, value(of[i])/value(by[i]))
	}
	slices.Sort(ratios)
	return ratios
}

// ofCluster is about three nodes beside one server.
func ofCluster(r *report.Report) (all []report.Goal) {
	perSecond := func(f report.Figures) float64 { return f.PerSecond }
	cpu := func(f report.Figures) float64 { return f.CPUPerMillion }
	work := func(verb string, c, k int) string { return fmt.Sprint(verb, " ", load.ShapeOf(c, k, 64)) }
	p50 := func(f report.Figures) float64 { return f.P50 }
	ratio := func(work, what, other string, bound float64, atMost bool, value func(report.Figures) float64) {
		ratios := pairs(r, work, servers.ThreeNodes, other, value)
		n, sign := len(ratios), "≥"
		if atMost {
			sign = "≤"
		}
		want := fmt.Sprintf("3 nodes: %s %s %.3g × %s", what, sign, bound, other)
		if n == 0 {
			all = append(all, newGoal(work, want, 0, 0, false, atMost, ""))
			return
		}
		median := report.Median(ratios)
		all = append(all, newGoal(work, want, median, bound, true, atMost,
			"%.2f × (half of %d pairs of rounds: %.2f to %.2f)", median, n, ratios[n/4], ratios[n-1-n/4]))
	}
	for _, s := range []struct {
		connections, inflight int
		bound                 float64
	}{{50, 1, 0.7}, {200, 1, 0.8}, {50, 16, 0.6}} {
		set := work("SET", s.connections, s.inflight)
		ratio(set, "rate", servers.Holdfast, s.bound, false, perSecond)
		ratio(set, "leader's CPU", servers.Holdfast, 1.5, true, cpu)
		share, ok := r.Value(set, servers.ThreeNodes, cluster.FollowerShare)
		if leader := pairs(r, set, servers.ThreeNodes, servers.Holdfast, cpu); len(leader) > 0 {
			share *= report.Median(leader)
		}
		all = append(all, newGoal(set, "3 nodes: CPU of each follower ≤ 0.4 × "+servers.Holdfast, share, 0.4, ok, true, "%.2f ×", share))
		ratio(work("GET", s.connections, s.inflight), "leader's CPU", servers.Holdfast, 1.03, true, cpu)
		ratio(cluster.BesideWork("SET", load.ShapeOf(s.connections, s.inflight, 64), servers.ThreeMembers), "rate", servers.ThreeMembers, 3, false, perSecond)
	}
	// A SET of one server takes a round trip and an fsync, and one of three nodes may take one and a half of both more.
	ratio(work("SET", 1, 1), "latency (p50)", servers.Holdfast, 2.5, true, p50)
	one, ok1 := r.Median(work("GET", 1, 1), servers.Holdfast)
	through, ok2 := r.Median(work("GET", 1, 1), servers.ByFollower)
	all = append(all, newGoal(work("GET", 1, 1), "3 nodes: latency through a follower ≤ + 30 µs", through.P50-one.P50, 30, ok1 && ok2, true,
		"p50 + %.0f µs (%.0f µs : %.0f µs)", through.P50-one.P50, through.P50, one.P50))
	for _, c := range []struct {
		work, what string
		bound      float64
	}{
		{cluster.LeaderKilled, cluster.FewKeys, 2},
		{cluster.LeaderKilled, cluster.Keys(cluster.ManyKeys), 3},
		{cluster.Transferred, cluster.FewKeys, 0.5},
	} {
		v, ok := r.Value(c.work, servers.ThreeNodes, c.what)
		all = append(all, newGoal(c.work+" "+c.what, fmt.Sprintf("≤ %g s", c.bound), v, c.bound, ok, true, "%.2f s", v))
	}
	return all
}
