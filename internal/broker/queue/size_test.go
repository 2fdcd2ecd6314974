//go:build amd64 && !lockrank

package queue

import (
	"testing"
	"unsafe"
)

// See the test of the broker's Conn.
func TestQueueKeepsItsSizeClass(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(deliveries{}); size > 144 {
		t.Errorf("the deliveries of a queue have %d bytes, more than their size class of 144", size)
	}
	if size := unsafe.Sizeof(Queue{}); size > 16 {
		t.Errorf("a queue without messages has %d bytes", size)
	}
}
