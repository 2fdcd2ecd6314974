package clocks

import (
	"slices"
	"sort"
	"time"
)

// Reading is the clock of another node.
type Reading struct {
	Name   string
	Ahead  time.Duration // of this node's clock; negative: behind
	Within time.Duration // how wrong Ahead may be: half a round trip
}

// Judgement is what follows from the clocks of all nodes that answer, the own one included.
type Judgement struct {
	// Majority: the clocks of more than half of the nodes, and of two at least, are within the bound
	// of each other. Agree are the others among these.
	Majority bool
	Agree    []string
	// Ahead is how far the own clock is ahead of the median of the majority's; negative: behind.
	Ahead time.Duration
	// Wrong: that is certainly more than the bound.
	Wrong bool
}

// Judge judges the own clock. Where several groups of nodes are a majority, all nodes choose the same: the
// largest, of these the one whose clocks are closest together, and of these the one that is furthest behind.
// So not all clocks are wrong, and no two that are not differ by more than twice the bound.
func Judge(others []Reading, bound time.Duration) (j Judgement) {
	all := append([]Reading{{}}, others...) // the own clock is 0 ahead of itself
	sort.SliceStable(all, func(i, j int) bool { return all[i].Ahead < all[j].Ahead })
	var best []Reading
	for from := range all {
		to := from + 1
		for to < len(all) && all[to].Ahead-all[from].Ahead <= bound {
			to++
		}
		if group := all[from:to]; len(group) > len(best) || len(group) == len(best) && spread(group) < spread(best) {
			best = group
		}
	}
	if 2*len(best) <= len(all) || len(all) == 1 {
		return j
	}
	ahead := -median(best)
	return Judgement{Majority: true, Ahead: ahead, Wrong: ahead.Abs()-within(best) > bound, Agree: names(best)}
}

func spread(sorted []Reading) time.Duration { return sorted[len(sorted)-1].Ahead - sorted[0].Ahead }

// median is that of a sorted group: between the two in the middle, if there are two.
func median(sorted []Reading) time.Duration {
	low, high := sorted[(len(sorted)-1)/2].Ahead, sorted[len(sorted)/2].Ahead
	return low + (high-low)/2
}

// within is the largest error of a group.
func within(group []Reading) (most time.Duration) {
	for _, r := range group {
		most = max(most, r.Within)
	}
	return most
}

func names(group []Reading) (all []string) {
	for _, r := range group {
		if r.Name != "" {
			all = append(all, r.Name)
		}
	}
	slices.Sort(all)
	return all
}
