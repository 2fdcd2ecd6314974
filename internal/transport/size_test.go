//go:build amd64 && !lockrank

package transport

import (
	"testing"
	"unsafe"
)

// Each idle client has a Conn, which Go's allocator rounds up to its size class: the
// next one is 32 bytes larger.
func TestAConnKeepsItsSizeClass(t *testing.T) {
	t.Parallel()
	const class = 384
	if size := unsafe.Sizeof(Conn{}); size > class {
		t.Errorf("a Conn has %d bytes, more than its size class of %d", size, class)
	}
}
