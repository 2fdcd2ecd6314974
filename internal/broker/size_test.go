//go:build amd64 && !lockrank

package broker

import (
	"testing"
	"unsafe"
)

// What an idle client costs on the heap is mostly this, its session.Session and
// transport.Conn. Go's allocator rounds an object up to its size class, so a field may
// cost nothing or 16 to 32 bytes of each client. What an idle client doesn't need goes
// behind a pointer, as the deliveries of a queue do.
func TestConnKeepsItsSizeClass(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(Conn{}); size > 352 {
		t.Errorf("a Conn has %d bytes, more than its size class of 352", size)
	}
}
