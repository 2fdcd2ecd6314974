package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// policyWork names the GETs that are compared with and without a policy.
func policyWork(s shape) string { return fmt.Sprint("GET under a policy ", s) }

// policyCost is the figure that the goal is about.
const policyCost = "processor time beside no policy, median of the pairs"

var policyShapes = []shape{{50, 1, 64}, {50, 16, 64}}

// pairsEach is how many pairs of rounds are measured before the servers are started anew.
const pairsEach = 4

// policy measures what the checks of a policy cost the server for a GET. One server has a
// policy that allows each client just its topics and its keys, the other has none. They
// take turns, each round of one beside a round of the other. Two processes of one program
// differ by a few percent, depending on where their memory is, so both are started anew
// for every few pairs.
func (b *bench) policy(ctx context.Context) error {
	ratios := map[shape][]float64{}
	for range b.report.Rounds {
		if err := b.policyPairs(ctx, ratios); err != nil {
			return err
		}
	}
	for _, s := range policyShapes {
		if len(ratios[s]) > 0 {
			b.report.measure(policyWork(s), holdfastPolicy, "pairs", float64(len(ratios[s])), "")
			b.report.measure(policyWork(s), holdfastPolicy, policyCost, median(ratios[s]), "×")
		}
	}
	return nil
}

// policyPairs starts both servers and measures some pairs of rounds.
func (b *bench) policyPairs(ctx context.Context, ratios map[shape][]float64) error {
	var targets []*target
	for _, name := range []string{holdfast, holdfastPolicy} {
		t := b.lab.start(ctx, name)
		if t == nil {
			return nil
		}
		defer t.stop()
		targets = append(targets, t)
	}
	const clients = 50
	keys := policyKeys(clients)
	for _, t := range targets {
		if err := t.preload(keys, strings.Repeat("v", 64), clients, len(keys)/clients); err != nil {
			return fmt.Errorf("%s: setting the keys: %w", t.name, err)
		}
	}
	for pair := range pairsEach {
		for _, s := range policyShapes {
			var cost [2]float64 // processor time of a GET, without and with the policy
			for turn := range targets {
				if err := ctx.Err(); err != nil {
					return err
				}
				n := (turn + pair) % 2
				f, err := targets[n].round("GET", s, keys, b.roundTime)
				b.report.add(policyWork(s), targets[n].name, f, err)
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

// policyFile writes the policy.
func policyFile(dir string) (string, error) {
	file := filepath.Join(dir, "policy.yaml")
	return file, os.WriteFile(file, fmt.Appendf(nil, `rules:
- brokerResources:
  - method: Connect
  - {method: Publish, topics: [%q]}
  - {method: Subscribe, topics: ["clients/{principal.clientId}/#"]}
  stateStoreResources:
  - {method: ReadWrite, keyType: Pattern, keys: ["{principal.clientId}:*"]}
`, wire.InvokeTopic), 0o600)
}

func startHoldfastPolicy(ctx context.Context, l *laboratory, dir string) (*target, error) {
	file, err := policyFile(dir)
	if err != nil {
		return nil, err
	}
	return l.startHoldfast(ctx, dir, "sync", "--policy", file)
}
