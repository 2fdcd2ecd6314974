//go:build race && lockrank

package server

const raceEnabled = true
