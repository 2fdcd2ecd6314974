//go:build amd64 && !lockrank

package session

import (
	"testing"
	"unsafe"
)

// See the test of the broker's Conn.
func TestSessionKeepsItsSizeClass(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(Session{}); size > 256 {
		t.Errorf("a Session has %d bytes, more than its size class of 256", size)
	}
}
