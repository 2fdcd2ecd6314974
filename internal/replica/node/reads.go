//go:build !holdfast_reads_unchecked

package node

// readsUnchecked is true in a program that the partition tests build as a negative control: its leader
// answers reads without looking at its lease. Never otherwise.
const readsUnchecked = false
