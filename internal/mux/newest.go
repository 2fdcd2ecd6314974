//go:build !holdfast_next_level

package mux

// highest is the highest version of the protocol that this program speaks.
const highest = 2
