package mux

import "sync"

// Buffers have one of four sizes, each four times the one before. So a stream with more than 64
// unread bytes holds less than four times as many, if nothing of them was read.
const (
	tinyBuffer   = 256
	smallBuffer  = 1 << 10
	mediumBuffer = 4 << 10
	largeBuffer  = Window
)

var (
	tinyBuffers   = sync.Pool{New: func() any { return new([tinyBuffer]byte) }}
	smallBuffers  = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	mediumBuffers = sync.Pool{New: func() any { return new([mediumBuffer]byte) }}
	largeBuffers  = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// bufferSize is the size of the buffer that so many bytes need.
func bufferSize(n int) int {
	switch {
	case n <= tinyBuffer:
		return tinyBuffer
	case n <= smallBuffer:
		return smallBuffer
	case n <= mediumBuffer:
		return mediumBuffer
	}
	return largeBuffer
}

// takeBuffer gives an empty buffer of a size that bufferSize has given.
func takeBuffer(size int) []byte {
	switch size {
	case tinyBuffer:
		return tinyBuffers.Get().(*[tinyBuffer]byte)[:0]
	case smallBuffer:
		return smallBuffers.Get().(*[smallBuffer]byte)[:0]
	case mediumBuffer:
		return mediumBuffers.Get().(*[mediumBuffer]byte)[:0]
	}
	return largeBuffers.Get().(*[largeBuffer]byte)[:0]
}

func freeBuffer(b []byte) {
	switch cap(b) {
	case tinyBuffer:
		tinyBuffers.Put((*[tinyBuffer]byte)(b[:tinyBuffer]))
	case smallBuffer:
		smallBuffers.Put((*[smallBuffer]byte)(b[:smallBuffer]))
	case mediumBuffer:
		mediumBuffers.Put((*[mediumBuffer]byte)(b[:mediumBuffer]))
	case largeBuffer:
		largeBuffers.Put((*[largeBuffer]byte)(b[:largeBuffer]))
	}
}
