package transport

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/transport/nowait"
)

// parkedInput is the most that a peer may have sent of a packet and still be
// kept in the smallest buffer while it makes us wait for the rest: many
// clients that each send one byte must not cost a full read buffer each.
const parkedInput = 512

// Buffered is what was read and not discarded. The view is valid until the next
// Fill.
func (c *Conn) Buffered() []byte { return c.in[c.r:c.w] }

// Discard drops the first n of the buffered bytes; n over what is buffered is a
// bug of the caller and panics.
func (c *Conn) Discard(n int) {
	if n < 0 || n > int(c.w-c.r) {
		panic("transport: Discard of more than is buffered")
	}
	c.r += int32(n)
}

// Fill blocks until at least one more byte is buffered. need is a hint: the
// length in bytes of the packet that begins with what is buffered, 0 if unknown.
// It only ever bounds how far the buffer grows: capacity doubles when the buffer
// is full of bytes that really came, never because a length was claimed.
//
// An unfinished packet is charged to the pool of memory while its rest is awaited.
// Before its buffer grows beyond a read buffer, the reader waits while the pool is
// tight, so that the peer waits.
//
// Errors: ErrClosed after Shut or Close, ErrInterrupted after Interrupt, ErrNoMemory
// if the pool has no room for the packet, io.EOF when the peer has ended the stream,
// otherwise the socket's. After an error nothing is buffered any more.
func (c *Conn) Fill(need int) error {
	if c.closing.Load() {
		return c.endInput(ErrClosed)
	}
	if err := c.makeRoom(need); err != nil {
		return c.endInput(err)
	}
	c.waited = false
	var n int
	var err error
	if c.raw != nil {
		n, err = c.fillRaw()
		if err != nil && c.interrupted.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			n, err = c.fillNow()
		}
	} else {
		n, err = c.fillPlain()
	}
	if err != nil {
		switch {
		case c.closing.Load():
			err = ErrClosed
		case c.interrupted.Load() && errors.Is(err, os.ErrDeadlineExceeded):
			err = ErrInterrupted
		}
		return c.endInput(err)
	}
	c.w += int32(n)
	return nil
}

// makeRoom moves what is buffered to the front and, if that fills the buffer,
// doubles it. Moving costs at most one copy of one unfinished packet per Discard.
func (c *Conn) makeRoom(need int) error {
	switch {
	case c.r == c.w:
		c.r, c.w = 0, 0
		if len(c.in) != int(c.readSize) {
			c.releaseInput() // a large packet has gone by
		} else if c.inputHeld.Load() > 0 {
			c.chargeInput(0)
		}
	case c.r > 0:
		c.w = int32(copy(c.in, c.in[c.r:c.w]))
		c.r = 0
	}
	if c.in == nil || int(c.w) < len(c.in) {
		return nil
	}
	size := 2 * len(c.in)
	if need > len(c.in) {
		size = min(size, need)
	}
	if err := c.awaitMemory(int32(size)); err != nil {
		return err
	}
	c.moveInput(size)
	return nil
}

// chargeInput has the pool charged with n bytes for the input; less is never
// refused.
func (c *Conn) chargeInput(n int32) bool {
	more := int64(n - c.inputHeld.Load())
	switch {
	case more == 0:
		return true
	case more > 0 && !c.memory.Take(c.inputKind, more):
		return false
	case more < 0:
		c.memory.Charge(c.inputKind, more)
	}
	c.inputHeld.Store(n)
	return true
}

// How long a packet that grows waits for memory: while the pool is tight, so that
// it doesn't get to its bound, and then at the bound for others to be closed.
const (
	tightPatience = 50 * time.Millisecond
	boundPatience = 2 * time.Second
	memoryPause   = 5 * time.Millisecond
)

// awaitMemory charges size bytes for the input, once the pool has them.
func (c *Conn) awaitMemory(size int32) error {
	for waited := time.Duration(0); ; waited += memoryPause {
		if waited >= tightPatience || !c.memory.Tight() {
			if c.chargeInput(size) {
				return nil
			}
			if c.inputKind == memory.Unconnected || waited >= boundPatience {
				return ErrNoMemory
			}
		}
		if waited == 0 {
			c.awaiting.Store(true)
			defer c.awaiting.Store(false)
		}
		time.Sleep(memoryPause)
		if c.closing.Load() {
			return ErrClosed
		}
	}
}

// Connected says that it is known from now on who the peer is: its input is
// charged as memory.Input. For the reader.
func (c *Conn) Connected() {
	held := c.inputHeld.Swap(0)
	c.memory.Credit(c.inputKind, int64(held))
	if c.tls != nil {
		records := int64(c.tls.wire.held.Load())
		c.memory.Credit(c.inputKind, records)
		c.memory.Charge(memory.Input, records)
	}
	c.inputKind = memory.Input
	c.memory.Charge(c.inputKind, int64(held))
	c.inputHeld.Store(held)
}

// HeldInput is how many bytes are charged for a packet that waits for its rest, and for
// TLS records.
func (c *Conn) HeldInput() int {
	n := int(c.inputHeld.Load())
	if c.tls != nil {
		n += int(c.tls.wire.held.Load())
	}
	return n
}

// AwaitsMemory says whether the reader doesn't read at the moment because the packet
// that is coming in finds no memory to grow: the peer may have sent more.
func (c *Conn) AwaitsMemory() bool { return c.awaiting.Load() }

// moveInput moves what is buffered into a buffer of at least size bytes.
func (c *Conn) moveInput(size int) {
	b := getBuffer(size)
	copy(b, c.in[:c.w])
	putBuffer(c.in)
	c.in = b
}

// EndInput lets go of the input when its reader stops, for whatever reason.
func (c *Conn) EndInput() { _ = c.endInput(nil) }

func (c *Conn) releaseInput() {
	putBuffer(c.in)
	c.in = nil
	if c.inputHeld.Load() > 0 {
		c.chargeInput(0)
	}
}

func (c *Conn) endInput(err error) error {
	c.releaseInput()
	c.r, c.w = 0, 0
	if c.tls != nil {
		c.memory.Credit(c.inputKind, int64(c.tls.wire.held.Swap(0)))
	}
	return err
}

// Waited reports whether the last Fill had to wait for the peer. If not, the peer
// sends faster than its reader works.
func (c *Conn) Waited() bool { return c.waited }

func (c *Conn) fillRaw() (int, error) {
	// Read holds the descriptor's read lock while it waits: only the reader
	// goroutine ever takes it.
	if err := c.raw.Read(c.readable); err != nil {
		return 0, err
	}
	return int(c.readN), c.readErr
}

// Interrupt has Fill return what the peer has sent already, and then ErrInterrupted
// instead of waiting for more, now if it is waiting. From any goroutine.
func (c *Conn) Interrupt() {
	c.interrupted.Store(true)
	deadline := past // Fill goes on without waiting
	if c.raw == nil {
		deadline = time.Now().Add(plainInterrupt)
	}
	_ = c.nc.SetReadDeadline(deadline)
	if c.closing.Load() {
		_ = c.nc.SetReadDeadline(past) // as Shut has it
	}
}

// plainInterrupt is how long Fill still reads on the plain path after Interrupt.
// TLS and WebSocket can't say whether there is more to read, and a read that has
// timed out may have stopped in the middle of a frame: it must be the last one.
const plainInterrupt = 20 * time.Millisecond

// fillNow is fillRaw without waiting.
func (c *Conn) fillNow() (int, error) {
	ready := false
	// Control, unlike Read, minds no deadline.
	if err := c.raw.Control(func(fd uintptr) { ready = c.readReady(fd) }); err != nil {
		return 0, err
	}
	if !ready {
		return 0, ErrInterrupted
	}
	return int(c.readN), c.readErr
}

// readReady is called by RawConn.Read, first at once and then whenever the
// socket may have become readable; false means: wait. The buffer is taken here
// and given back before waiting, so that an idle connection holds none.
func (c *Conn) readReady(fd uintptr) bool {
	switch {
	case c.in == nil:
		c.in = getBuffer(int(c.readSize))
	case len(c.in) < int(c.readSize):
		c.moveInput(int(c.readSize))
	}
	n, again, err := c.readOnce(fd, c.in[c.w:min(len(c.in), int(c.w)+maxRead)])
	if !again {
		c.readN, c.readErr = int32(n), err
		return true
	}
	c.waited = true
	switch {
	case c.w == 0:
		c.releaseInput()
	case c.w <= parkedInput && len(c.in) > minBuffer:
		c.moveInput(minBuffer)
	}
	if !c.holdInput() {
		c.readErr = ErrNoMemory
		return true
	}
	return false
}

// maxRead is how many bytes one system call reads at the most. To copy so many takes some
// tens of microseconds, after which the reader of a large packet can let others work.
const maxRead = 128 << 10

// readOnce reads what is there, decrypted if it is to be. again: nothing is there yet.
func (c *Conn) readOnce(fd uintptr, p []byte) (n int, again bool, err error) {
	if c.tls != nil {
		return c.tls.readOnce(fd, p)
	}
	return nowait.Read(fd, p)
}

// holdInput charges the buffer of an unfinished packet, whose reader may wait now.
// It says false if a client that hasn't said who it is finds no room.
func (c *Conn) holdInput() bool {
	if c.w == 0 || c.chargeInput(int32(len(c.in))) {
		return true
	}
	if c.inputKind == memory.Unconnected {
		return false
	}
	c.memory.Charge(c.inputKind, int64(int32(len(c.in))-c.inputHeld.Load()))
	c.inputHeld.Store(int32(len(c.in)))
	return true
}

// fillPlain reads from a connection that cannot say whether it is readable.
// With nothing buffered it waits for a single byte, without a buffer, and leaves
// the rest to the next call: TLS and WebSocket hold that rest themselves. No
// packet is one byte long, so that call comes with something buffered; should a
// caller use up the one byte alone, it still reads the rest in one piece.
func (c *Conn) fillPlain() (int, error) {
	if s := c.stream(); s != nil {
		return c.fillStream(s)
	}
	if c.in != nil && c.w == 0 && !c.probed {
		c.releaseInput()
	}
	began := time.Now()
	defer func() { c.waited = time.Since(began) > plainWait }()
	c.probed = c.in == nil
	if !c.probed {
		if !c.holdInput() {
			return 0, ErrNoMemory
		}
		return readSome(c.nc, c.in[c.w:])
	}
	n, err := readSome(c.nc, c.probe[:])
	if err != nil {
		return 0, err
	}
	c.in = getBuffer(int(c.readSize))
	c.in[0] = c.probe[0]
	return n, nil
}

// fillStream is fillPlain for a connection that says when there is something to read.
func (c *Conn) fillStream(s Stream) (int, error) {
	if c.w == 0 {
		c.releaseInput()
	}
	if !c.holdInput() {
		return 0, ErrNoMemory
	}
	c.waited = s.Await()
	if c.in == nil {
		c.in = getBuffer(int(c.readSize))
	}
	return readSome(s, c.in[c.w:])
}

// plainWait is how long a read of the plain path takes at least if it waits for the
// peer: longer than one that finds a frame, shorter than waking a goroutine.
const plainWait = 10 * time.Microsecond

// readSome is r.Read without its two oddities: no bytes without an error, and
// an error together with bytes (which the next Read repeats).
func readSome(r io.Reader, p []byte) (int, error) {
	const rounds = 100
	for range rounds {
		n, err := r.Read(p)
		if n > 0 {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, io.ErrNoProgress
}
