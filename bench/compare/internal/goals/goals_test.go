package goals

import (
	"errors"
	"testing"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/cluster"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/idle"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
)

func TestAGoalIsMetMissedOrNotMeasured(t *testing.T) {
	t.Parallel()
	r := &report.Report{}
	work := "SET " + load.ShapeOf(50, 1, 64).String()
	r.Add(work, servers.Holdfast, report.Figures{PerSecond: 100}, nil)
	r.Add(work, servers.Redis, report.Figures{PerSecond: 200}, nil)
	r.Measure(idle.Work, servers.Holdfast, "memory each", 4.5, "KiB")
	r.Add("GET "+load.ShapeOf(50, 1, 64).String(), servers.Redis, report.Figures{}, errors.New("gone"))
	for _, rate := range []float64{60, 90, 75, 70, 40} { // the median of the pairs with 100 is 0.7
		r.Add("SET 50 × 16, 64 B", servers.ThreeNodes, report.Figures{PerSecond: rate, CPUPerMillion: 16}, nil)
		r.Add("SET 50 × 16, 64 B", servers.Holdfast, report.Figures{PerSecond: 100, CPUPerMillion: 10}, nil)
	}
	besideEtcd := cluster.BesideWork("SET", load.ShapeOf(50, 16, 64), servers.ThreeMembers)
	r.Add(besideEtcd, servers.ThreeNodes, report.Figures{PerSecond: 70}, nil)
	r.Add(besideEtcd, servers.ThreeMembers, report.Figures{PerSecond: 20}, nil)
	r.Add(work, servers.ThreeNodes, report.Figures{PerSecond: 100}, nil)
	r.Add(work, servers.ThreeNodes, report.Figures{PerSecond: 100}, nil) // and one of Holdfast has failed
	r.Measure(cluster.LeaderKilled, servers.ThreeNodes, cluster.FewKeys, 2.5, "s")
	results := map[string]string{}
	for _, g := range Of(r) {
		results[g.Work+", "+g.Goal] = map[bool]string{true: "?", false: "missed"}[g.Met == nil]
		if g.Met != nil && *g.Met {
			results[g.Work+", "+g.Goal] = "met"
		}
	}
	for goal, want := range map[string]string{
		work + ", ≥ 1 × " + servers.Redis:                                                                                          "missed",
		idle.Work + ": memory each, ≤ 5 KiB, one goroutine":                                                                        "met",
		"GET 50 × 1, 64 B, ≥ 0.9 × " + servers.Redis:                                                                               "?",
		"GET 50 × 1, 64 B, CPU ≤ 1.25 × " + servers.BareLoop:                                                                       "?",
		"SET 50 × 16, 64 B, 3 nodes: rate ≥ 0.6 × " + servers.Holdfast:                                                             "met",
		"SET 50 × 16, 64 B, 3 nodes: leader's CPU ≤ 1.5 × " + servers.Holdfast:                                                     "missed",
		besideEtcd + ", 3 nodes: rate ≥ 3 × " + servers.ThreeMembers:                                                               "met",
		work + ", 3 nodes: rate ≥ 0.7 × " + servers.Holdfast:                                                                       "?",
		cluster.BesideWork("SET", load.ShapeOf(50, 1, 64), servers.ThreeMembers) + ", 3 nodes: rate ≥ 3 × " + servers.ThreeMembers: "?",
		cluster.LeaderKilled + " " + cluster.FewKeys + ", ≤ 2 s":                                                                   "missed",
		"NOTIFY to 10000 watchers, last one ≤ 1.3 × bare loop":                                                                     "?",
	} {
		if got := results[goal]; got != want {
			t.Errorf("%s: %q, want %q", goal, got, want)
		}
	}
}
