package transport

import (
	"math/bits"
	"sync"
	"unsafe"
)

// Buffers come in powers of two, from 1 KiB to 4 MiB, which a packet of the default
// maximum size fits in, a pool for each. Anything larger belongs to the garbage
// collector. What a pool holds is not charged to the pool of memory: the collector takes
// it away after two cycles, and cycles come soon when memory is scarce (GOMEMLIMIT).
// Without pools for the largest classes, a client that sends one large packet after the
// other has the collector at work all the time.
const (
	minBufferBits = 10
	maxBufferBits = 22
	minBuffer     = 1 << minBufferBits
	maxBuffer     = 1 << maxBufferBits
)

// bufferPools holds the first byte of each array instead of a slice: a pointer
// goes into an interface without an allocation, a slice header does not. The
// index says how long the array is.
var bufferPools [maxBufferBits - minBufferBits + 1]sync.Pool

// bufferClass is the smallest class that holds n bytes; n must not be over
// maxBuffer.
func bufferClass(n int) int {
	if n <= minBuffer {
		return 0
	}
	return bits.Len(uint(n-1)) - minBufferBits
}

// getBuffer returns a buffer of at least n bytes, len and cap being its whole
// size. What is in it is left from another user.
func getBuffer(n int) []byte {
	if n > maxBuffer {
		return make([]byte, n)
	}
	class := bufferClass(n)
	size := minBuffer << class
	if p, ok := bufferPools[class].Get().(*byte); ok {
		return unsafe.Slice(p, size)
	}
	return make([]byte, size)
}

// putBuffer takes a buffer back. b may also have been grown by append: it then
// serves the largest class that fits into it. The caller must be the only one
// that still knows it.
func putBuffer(b []byte) {
	n := cap(b)
	if n < minBuffer || n >= 2*maxBuffer {
		return
	}
	class := bits.Len(uint(n)) - 1 - minBufferBits
	bufferPools[class].Put(unsafe.SliceData(b))
}
