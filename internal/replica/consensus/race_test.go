//go:build race

package consensus

const underRace = true
