//go:build !holdfast_shifted_clock

// Package wallclock is how far the wall clock of a program under test is off. It is right in every
// other program.
package wallclock

// ShiftMs is added to the machine's wall clock, in ms. It is 0 but in a program that is built with the tag
// holdfast_shifted_clock: there the variable HOLDFAST_TEST_CLOCK_SHIFT_MS says it.
const ShiftMs int64 = 0
