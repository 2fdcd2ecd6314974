package main

import (
	"net"
	"syscall"
)

// reader reads a socket into a buffer that it holds only while it has bytes:
// ten thousand idle connections hold none.
type reader struct {
	raw  syscall.RawConn
	buf  *[]byte
	r, w int // (*buf)[r:w] is unread
	err  bool
	read func(fd uintptr) bool // built once: a closure per read would be garbage
}

func newReader(raw syscall.RawConn) *reader {
	r := &reader{raw: raw}
	r.read = func(fd uintptr) bool {
		if r.buf == nil {
			r.buf = readBuffers.Get().(*[]byte)
		}
		n, err := syscall.Read(int(fd), (*r.buf)[r.w:])
		if err == syscall.EAGAIN {
			r.release()
			return false
		}
		r.err = err != nil || n == 0
		r.w += max(n, 0)
		return true
	}
	return r
}

func (r *reader) buffered() []byte { return (*r.buf)[r.r:r.w] }
func (r *reader) discard(n int)    { r.r += n }

// fill waits for at least one more byte.
func (r *reader) fill() bool {
	r.release()
	if r.buf != nil {
		r.w = copy(*r.buf, (*r.buf)[r.r:r.w])
		r.r = 0
	}
	if err := r.raw.Read(r.read); err != nil {
		return false
	}
	return !r.err
}

// release gives an empty buffer back.
func (r *reader) release() {
	if r.buf != nil && r.r == r.w {
		readBuffers.Put(r.buf)
		r.buf, r.r, r.w = nil, 0, 0
	}
}

// input is what a connection is read through.
type input interface {
	fill() bool // waits for at least one more byte
	buffered() []byte
	discard(n int)
}

// plainReader reads TLS, which can't be asked whether there is something to read: it
// holds its buffer while it waits, as a usual loop does.
type plainReader struct {
	conn net.Conn
	buf  [4 << 10]byte
	more []byte // instead of buf, once that was too small
	r, w int
}

func (r *plainReader) bytes() []byte {
	if r.more != nil {
		return r.more
	}
	return r.buf[:]
}

func (r *plainReader) buffered() []byte { return r.bytes()[r.r:r.w] }
func (r *plainReader) discard(n int)    { r.r += n }

func (r *plainReader) fill() bool {
	b := r.bytes()
	r.w = copy(b, b[r.r:r.w])
	r.r = 0
	if r.w == len(b) {
		r.more = append(make([]byte, 0, 4*len(b)), b...)[:4*len(b)]
		b = r.more
	}
	n, err := r.conn.Read(b[r.w:])
	r.w += n
	return err == nil
}
