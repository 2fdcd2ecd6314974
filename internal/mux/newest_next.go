//go:build holdfast_next_level

package mux

// highest is one more than that of the program without the tag, so that tests have a next version.
const highest = 3
