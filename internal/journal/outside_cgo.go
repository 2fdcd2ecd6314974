//go:build cgo

package journal

// OutsideHeap is how much memory Pebble takes outside of Go's heap at the most:
// with cgo its memtables and its cache come from malloc.
const OutsideHeap = cacheBytes + memTables*memTableBytes - usualTables*memTableBytes
