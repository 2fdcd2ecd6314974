package requests

import (
	"context"
	"fmt"
	"strings"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
)

// PolicyWork names the GETs that are compared with and without a policy.
func PolicyWork(s load.Shape) string { return fmt.Sprint("GET under a policy ", s) }

// PolicyCost is the figure that the goal is about.
const PolicyCost = "processor time beside no policy, median of the pairs"

// PolicyShapes are the shapes of the GETs under a policy.
var PolicyShapes = []load.Shape{load.ShapeOf(50, 1, 64), load.ShapeOf(50, 16, 64)}

// pairsEach is how many pairs of rounds are measured before the servers are started anew.
const pairsEach = 4

// UnderPolicy measures what the checks of a policy cost the server for a GET. One server has a
// policy that allows each client just its topics and its keys, the other has none. They
// take turns, each round of one beside a round of the other. Two processes of one program
// differ by a few percent, depending on where their memory is, so both are started anew
// for every few pairs.
func UnderPolicy(ctx context.Context, run *work.Run) error {
	ratios := map[load.Shape][]float64{}
	for range run.Report.Rounds {
		if err := policyPairs(ctx, run, ratios); err != nil {
			return err
		}
	}
	for _, s := range PolicyShapes {
		if len(ratios[s]) > 0 {
			run.Report.Measure(PolicyWork(s), servers.HoldfastPolicy, "pairs", float64(len(ratios[s])), "")
			run.Report.Measure(PolicyWork(s), servers.HoldfastPolicy, PolicyCost, report.Median(ratios[s]), "×")
		}
	}
	return nil
}

// policyPairs starts both servers and measures some pairs of rounds.
func policyPairs(ctx context.Context, run *work.Run, ratios map[load.Shape][]float64) error {
	var targets []*servers.Target
	for _, name := range []string{servers.Holdfast, servers.HoldfastPolicy} {
		t := run.Lab.Start(ctx, name)
		if t == nil {
			return nil
		}
		defer t.Stop()
		targets = append(targets, t)
	}
	const clients = 50
	keys := policyKeys(clients)
	for _, t := range targets {
		if err := load.Preload(t, keys, strings.Repeat("v", 64), clients, len(keys)/clients); err != nil {
			return fmt.Errorf("%s: setting the keys: %w", t.Name, err)
		}
	}
	for pair := range pairsEach {
		for _, s := range PolicyShapes {
			var cost [2]float64 // processor time of a GET, without and with the policy
			for turn := range targets {
				if err := ctx.Err(); err != nil {
					return err
				}
				n := (turn + pair) % 2
				f, err := load.Round(targets[n], "GET", s, keys, run.RoundTime)
				run.Report.Add(PolicyWork(s), targets[n].Name, f, err)
				cost[n] = f.CPUPerMillion
			}
			if cost[0] > 0 && cost[1] > 0 {
				ratios[s] = append(ratios[s], cost[1]/cost[0])
			}
		}
	}
	return nil
}

// policyKeys gives each of n clients 20 keys of 32 bytes, which begin with its name.
func policyKeys(n int) []string {
	var keys []string
	for i := range n {
		owner := fmt.Sprint("client-", i, ":")
		for k := range 20 {
			keys = append(keys, fmt.Sprintf("%s%0*d", owner, 32-len(owner), k))
		}
	}
	return keys
}
