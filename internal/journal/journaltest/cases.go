package journaltest

import "flag"

// all makes the simulations try all their cases. The default under the race detector,
// where each case takes several times as long, is a part of them: what they find there
// are races, and those are the same in most cases. "make race-journal" tries all.
var all = flag.Bool("all", !raceEnabled, "try every case of the simulations, also under the race detector")

// fewerBy is how many times fewer cases are tried without -all.
const fewerBy = 4

// Some is how many of n cases are to be tried.
func Some(n int) int {
	if *all {
		return n
	}
	return max(1, n/fewerBy)
}

// Stride is the distance from one case that is to be tried to the next, where there are
// very many.
func Stride() int {
	if *all {
		return 1
	}
	return fewerBy + 1 // simulations vary their cases in patterns of two and of three
}
