//go:build race

package engine

// raceDetector: with it sync.Pool forgets on purpose, so allocations say nothing.
const raceDetector = true
