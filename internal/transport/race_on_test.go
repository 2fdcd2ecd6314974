//go:build race

package transport

// raceEnabled: the race detector drops from pools at random, so allocations
// cannot be counted under it.
const raceEnabled = true
