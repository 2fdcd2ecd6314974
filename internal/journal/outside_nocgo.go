//go:build !cgo

package journal

// OutsideHeap is how much memory Pebble takes outside of Go's heap at the most:
// without cgo none.
const OutsideHeap = 0
