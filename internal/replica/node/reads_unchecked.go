//go:build holdfast_reads_unchecked

package node

const readsUnchecked = true
