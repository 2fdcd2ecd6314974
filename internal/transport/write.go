package transport

import (
	"time"
	"unsafe"
)

// How output leaves.
//
//	anybody ──append──▶ out ──take──▶ sending ──write──▶ socket
//	           (mu)            (mu)             (the writer alone, no lock)
//
// Anybody appends to out under mu. At most one goroutine at a time is the writer
// of a connection: the one that found writing false and set it, under mu. The
// writer takes the whole of out as sending, so that appenders begin a fresh
// buffer while the old one is being written; it writes sending to its end before
// it takes again, so bytes leave in the order in which they were appended. Before
// it resigns it looks, under mu, whether more has come: so a Flush that finds a
// writer may simply return, its bytes will be taken.
//
// The writer is first whoever calls Flush, with writes that never wait (push). If
// the socket does not take everything, the role passes to a goroutine of this
// connection (drain) that waits for room and resigns when nothing is left: while a
// peer stalls, a Flush costs a lock and a look. Connections on the plain path
// cannot write without waiting, there the role goes to that goroutine at once.
//
// The Drained callback runs while its caller is still the writer. A Flush from
// within it therefore returns at once and its bytes go with the next round of the
// loop: no recursion, however long the queue that Drained feeds from.

const (
	// outRoom is the room that Out guarantees: small packets never make append
	// leave the pooled buffer.
	outRoom = 512
	// firstOut is the size of the first output buffer of a connection.
	firstOut = 2 << 10
	// pushRounds bounds how long a caller of Flush serves a connection whose
	// Drained refills it; then its own goroutine goes on.
	pushRounds = 4
	// plainChunk bounds one blocking write of the plain path, so that Size falls
	// as the peer reads.
	plainChunk = 64 << 10
)

// Lock locks the output. Between Lock and Unlock: Out, SetOut, Append, Grow, and
// nothing that could wait.
func (c *Conn) Lock() { c.mu.Lock() }

// Unlock unlocks the output. Follow it with Flush or FlushSoon, now or when the
// input is drained.
func (c *Conn) Unlock() { c.mu.Unlock() }

// Out is the output so far, to append to; hand the result to SetOut before the
// Unlock. There is room for 512 bytes; call Grow first for more. Needs the lock.
func (c *Conn) Out() []byte {
	if cap(c.out)-len(c.out) < outRoom {
		return c.grow(outRoom)
	}
	return c.out
}

// SetOut makes p, which must be what Out returned with bytes appended, the
// output. It owns p: keep no view of it. Needs the lock. After Shut, Close or a
// failed write what was appended is dropped.
func (c *Conn) SetOut(p []byte) {
	moved := unsafe.SliceData(p) != unsafe.SliceData(c.out)
	if c.shut || c.broken {
		if moved {
			putBuffer(p)
		}
		return
	}
	if moved {
		putBuffer(c.out)
	}
	c.size.Add(int64(len(p) - len(c.out)))
	c.out = p
	if len(p) == 0 { // the encoder had nothing to say
		putBuffer(p)
		c.out = nil
	}
}

// Append appends a copy of p to the output. Needs the lock.
func (c *Conn) Append(p []byte) {
	if c.shut || c.broken {
		return
	}
	if cap(c.out)-len(c.out) < len(p) {
		c.grow(len(p))
	}
	c.out = append(c.out, p...)
	c.size.Add(int64(len(p)))
}

// Grow makes room for n more bytes from pooled memory, where append would
// allocate. n must be what is about to be appended, not a claim of the peer's.
// Needs the lock.
func (c *Conn) Grow(n int) {
	if cap(c.out)-len(c.out) < n && !c.shut && !c.broken {
		c.grow(n)
	}
}

// grow replaces out by a larger buffer with room for n bytes and returns it.
// When nothing is accepted any more it returns a buffer that SetOut will drop.
func (c *Conn) grow(n int) []byte {
	size := len(c.out) + n
	if c.out == nil {
		size = max(size, firstOut, minBuffer<<c.outClass)
	} else {
		size = max(size, min(2*cap(c.out), maxBuffer))
	}
	b := getBuffer(size)[:len(c.out)]
	copy(b, c.out)
	if c.shut || c.broken {
		return b
	}
	putBuffer(c.out)
	c.out = b
	return b
}

// Size is how many bytes of output the socket has not yet taken.
func (c *Conn) Size() int { return int(c.size.Load()) }

// Full reports whether Size has reached the output limit. If so, Drained will be
// called when the output is empty.
func (c *Conn) Full() bool {
	if c.size.Load() < int64(c.outputLimit) {
		return false
	}
	c.arm()
	// Armed first, looked second; the writer lowers size first and looks at
	// armed second: one of the two sees the other.
	return c.size.Load() >= int64(c.outputLimit)
}

// WantDrained asks for a call of Drained when the output is empty. It returns
// false, and nothing will be called, if it is empty already.
func (c *Conn) WantDrained() bool {
	c.arm()
	if c.size.Load() > 0 {
		return true
	}
	// If somebody else has disarmed it, then Drained is being called.
	return !c.armed.CompareAndSwap(true, false)
}

func (c *Conn) arm() {
	if !c.armed.Load() {
		c.armed.Store(true)
	}
}

// Flush writes what is there, now and without ever waiting. What the socket does
// not take leaves later, carried by a goroutine of this connection.
func (c *Conn) Flush() { c.flush(true) }

// FlushOnly is Flush for a caller on whose goroutine Drained must not run, because
// it holds locks or others wait for it: a goroutine of this connection runs it then.
func (c *Conn) FlushOnly() { c.flush(false) }

func (c *Conn) flush(mayDrain bool) {
	if c.size.Load() == 0 {
		return
	}
	c.mu.Lock()
	if c.writing || len(c.out) == 0 {
		c.mu.Unlock()
		return
	}
	c.writing = true
	c.takeOut()
	c.mu.Unlock()
	c.write(mayDrain)
}

// FlushSoon has one of the flushers call Flush. It costs next to nothing when
// that is due already.
func (c *Conn) FlushSoon() {
	if c.flushers == nil {
		c.Flush()
		return
	}
	c.flushers.soon.push(c)
}

// FlushInCrowd is FlushSoon for one of very many that are told something at once:
// whoever comes by FlushSoon needn't wait for it, c itself not excepted.
func (c *Conn) FlushInCrowd() {
	if c.flushers == nil {
		c.Flush()
		return
	}
	c.flushers.crowd.push(c)
}

// write starts the work of the writer, which the caller has just become.
func (c *Conn) write(mayDrain bool) {
	if c.raw != nil {
		c.push(mayDrain)
	} else {
		go c.drain()
	}
}

// push is the writer that never waits, nor calls Drained unless it may.
func (c *Conn) push(mayDrain bool) {
	for range pushRounds {
		if c.sending == nil && !c.take(mayDrain) {
			return
		}
		// Control, unlike Write, prepares nothing for a wait that never comes.
		err := c.raw.Control(c.pushable)
		if err == nil {
			err = c.writeErr
		}
		if err != nil {
			c.fail(err)
			return
		}
		if !c.wrote(c.writeN) {
			break
		}
	}
	go c.drain()
}

// drain is the writer that waits for room. It may begin in the middle of a
// buffer that push could not finish.
func (c *Conn) drain() {
	writable := c.writeReady
	for {
		if c.sending == nil && !c.take(true) {
			return
		}
		var n int
		var err error
		if c.raw != nil {
			if err = c.raw.Write(writable); err == nil {
				n, err = c.writeN, c.writeErr
			}
		} else {
			n, err = c.nc.Write(c.sending[c.sent:min(len(c.sending), c.sent+plainChunk)])
		}
		c.wrote(n)
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// take gives the writer everything that was appended. If there is nothing, or only
// Drained to be called and the caller may not, it is no longer the writer, and take
// returns false.
func (c *Conn) take(mayDrain bool) bool {
	c.mu.Lock()
	for {
		if c.takeOut() {
			c.mu.Unlock()
			return true
		}
		if c.shut || c.drained == nil || !c.armed.Load() {
			break
		}
		if !mayDrain {
			c.mu.Unlock()
			go c.drain()
			return false
		}
		if !c.armed.CompareAndSwap(true, false) {
			break
		}
		c.mu.Unlock()
		c.drained()
		c.mu.Lock()
	}
	putBuffer(c.out) // Out was called and nothing appended
	c.out = nil
	c.writing = false
	last := c.shut && !c.closed
	c.closed = c.closed || last
	c.mu.Unlock()
	if last {
		c.finish()
	}
	return false
}

// takeOut is take without more ado: false if there is nothing. Needs the lock.
func (c *Conn) takeOut() bool {
	if len(c.out) == 0 || c.closed {
		return false
	}
	c.sending, c.out, c.sent = c.out, nil, 0
	c.learn(len(c.sending))
	return true
}

// learn lets the next output begin with a buffer that would have held this one:
// a connection with large or many answers takes one buffer, not a ladder of
// them. It forgets slowly.
func (c *Conn) learn(n int) {
	class := int8(bufferClass(min(n, plainChunk)))
	c.outClass = max(class, c.outClass-1)
}

// wrote notes that the socket took n bytes and reports whether sending is done.
func (c *Conn) wrote(n int) (done bool) {
	c.sent += n
	if done = c.sent == len(c.sending); done {
		putBuffer(c.sending)
		c.sending = nil
	}
	c.size.Add(-int64(n))
	c.wake()
	return done
}

// wake wakes WaitOutput if its time has come. The order matters as in Full: size
// was lowered before waiting is looked at.
func (c *Conn) wake() {
	if !c.waiting.Load() {
		return
	}
	c.mu.Lock()
	if c.size.Load() < int64(c.waitLimit) {
		c.waiter.Broadcast()
	}
	c.mu.Unlock()
}

// fail ends the writer after a write error.
func (c *Conn) fail(err error) {
	if c.sending != nil {
		c.size.Add(-int64(len(c.sending) - c.sent))
		putBuffer(c.sending)
		c.sending = nil
	}
	c.mu.Lock()
	c.broken = true
	c.writing = false
	c.dropOutput()
	shut := c.shut
	c.mu.Unlock()
	switch {
	case shut:
		_ = c.Close()
	case c.failed == nil:
		time.AfterFunc(lingerTime, c.abandon)
	default:
		c.failed(err)
	}
}

// dropOutput drops what no writer has taken, and wakes who waits. Needs the lock.
func (c *Conn) dropOutput() {
	c.size.Add(-int64(len(c.out)))
	putBuffer(c.out)
	c.out = nil
	if c.waiter != nil {
		c.waiter.Broadcast()
	}
}

// pushRaw writes what the socket takes now.
func (c *Conn) pushRaw(fd uintptr) { c.writeReady(fd) }

// writeReady is called by RawConn.Write, first at once; false means: wait until
// the socket may have room and call again.
func (c *Conn) writeReady(fd uintptr) bool {
	n, again, err := writeOnce(fd, c.sending[c.sent:])
	c.writeN, c.writeErr = n, err
	return !again
}
