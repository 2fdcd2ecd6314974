//go:build race

package conformance

// raceDetector: with it what is large takes ten times as long.
const raceDetector = true
