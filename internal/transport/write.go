package transport

import (
	"time"
	"unsafe"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// How output leaves.
//
//	appenders ──append──▶ queue, out ──take──▶ sending ──write──▶ socket
//	             (mu)                  (mu)             (the writer alone, no lock)
//
// Output is appended under mu: small pieces are copied to the end of out, a
// pooled buffer; a large payload that others share (AppendShared) is referred to,
// in a queue of chunks that stand before out. At most one goroutine at a time is
// the writer of a connection: the one that found writing false and set it, under
// mu. The writer takes all of queue and out as sending, so that appenders
// begin afresh while it writes; it writes all that it took before it takes again,
// so bytes leave in the order in which they were appended. Before it resigns it
// looks, under mu, whether more has come: so a Flush that finds a writer may simply
// return, its bytes will be taken. A chunk's owner is released by the one that has
// the chunk at the time: the writer when it has been written or the write has
// failed, under mu when the output is dropped.
//
// The writer is first the goroutine that calls Flush, with writes that never wait (push). If
// the socket does not take everything, the role passes to a goroutine of this
// connection (drain) that waits for room and resigns when nothing is left: while a
// peer stalls, a Flush costs a lock and a look. Connections on the plain path
// cannot write without waiting, there the role goes to that goroutine at once.
//
// What is waiting is charged to the pool of memory from the moment on at which the
// socket has not taken all (stalled), or, on the plain path, may not take it (see
// freeOutput): a connection whose peer reads touches no counter. Shared chunks are not charged here, but by their owner, once for all
// connections.
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
	// freeOutput is how much of a connection's waiting output is not charged on the
	// plain path, which cannot tell a peer that stalls from one that reads.
	freeOutput = 2 << 10
	// maxGathered is how many chunks one system call writes at the most.
	maxGathered = 8
)

// Owner is who owns bytes that were appended by reference.
type Owner interface {
	// Release is called once when the connection doesn't need the bytes any more,
	// perhaps with its output lock held: it must neither block nor call the
	// connection.
	Release()
}

// chunk is a part of the output: a pooled buffer, or an owner's bytes.
type chunk struct {
	p     []byte
	owner Owner // nil: p is a buffer of the pool
	next  *chunk
}

// release lets go of the chunk, which becomes the next one, or empty.
func (k *chunk) release() {
	if k.owner != nil {
		k.owner.Release()
	} else {
		putBuffer(k.p)
	}
	if k.next != nil {
		*k = *k.next
	} else {
		*k = chunk{}
	}
}

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
	if c.stalled {
		c.charge()
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
	if c.stalled {
		c.charge()
	}
}

// AppendShared appends p without copying it: p must not change until owner, of
// which it takes over one reference, is released. It is for payloads that are so
// large that referring to them costs less than a copy (some 16 KiB), above all
// when many connections get the same. Needs the lock.
func (c *Conn) AppendShared(p []byte, owner Owner) {
	if c.shut || c.broken || len(p) == 0 {
		owner.Release()
		return
	}
	c.queueOut()
	c.enqueue(&chunk{p: p, owner: owner})
	c.size.Add(int64(len(p)))
	if c.stalled {
		c.charge()
	}
}

// queueOut makes out the last chunk of the queue. Needs the lock.
func (c *Conn) queueOut() {
	switch {
	case len(c.out) > 0:
		c.enqueue(&chunk{p: c.out})
		c.queued += int32(len(c.out))
	case c.out != nil: // Out was called and nothing appended
		putBuffer(c.out)
	}
	c.out = nil
}

// enqueue puts a chunk at the end of the queue. Needs the lock.
func (c *Conn) enqueue(k *chunk) {
	if c.queue == nil {
		c.queue = k
	} else {
		c.last.next = k
	}
	c.last = k
}

// charge charges the pool with what is waiting, or, if nothing stalls, with
// nothing. Needs the lock.
func (c *Conn) charge() {
	waiting := int32(0)
	if c.stalled {
		waiting = c.unsent + c.queued + int32(len(c.out))
		if c.raw == nil {
			waiting = max(0, waiting-freeOutput)
		}
	}
	if waiting != c.charged {
		c.memory.Charge(memory.Output, int64(waiting-c.charged))
		c.charged = waiting
	}
}

// stall charges what is waiting, as the writer has not got rid of it. For the writer.
func (c *Conn) stall() {
	c.mu.Lock()
	c.stalled = true
	c.unsent = c.copied()
	c.charge()
	c.mu.Unlock()
}

// copied counts the bytes of pooled buffers that the writer has still to write.
// For the writer.
func (c *Conn) copied() (n int32) {
	if c.sending.owner == nil {
		n = -int32(c.sent)
	}
	for k := &c.sending; k != nil; k = k.next {
		if k.owner == nil {
			n += int32(len(k.p))
		}
	}
	if c.tls != nil {
		n += int32(cap(c.tls.wire.record))
	}
	return n
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
	// If another goroutine has disarmed it, then Drained is being called.
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
	if c.writing || len(c.out) == 0 && c.queue == nil {
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

// FlushBulk is FlushSoon for one of very many connections that are notified at once.
// Connections that were queued by FlushSoon don't wait for them, c included.
func (c *Conn) FlushBulk() {
	if c.flushers == nil {
		c.Flush()
		return
	}
	c.flushers.bulk.push(c)
}

// write starts the work of the writer, which the caller has just become.
func (c *Conn) write(mayDrain bool) {
	if c.raw != nil {
		c.push(mayDrain)
	} else {
		c.stall()
		go c.drain()
	}
}

// push is the writer that never waits, nor calls Drained unless it may.
func (c *Conn) push(mayDrain bool) {
	for range pushRounds {
		if c.sending.p == nil && !c.take(mayDrain) {
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
		if !c.wrote(int(c.writeN)) && (c.tls == nil || c.tls.wire.blocked) {
			break
		}
	}
	c.stall()
	go c.drain()
}

// drain is the writer that waits for room. It may begin in the middle of a
// buffer that push could not finish.
func (c *Conn) drain() {
	writable := c.writeReady
	for {
		if c.sending.p == nil && !c.take(true) {
			return
		}
		c.stall() // before the write: it may wait, and then what waits is charged meanwhile
		var n int
		var err error
		if c.raw != nil {
			if err = c.raw.Write(writable); err == nil {
				n, err = int(c.writeN), c.writeErr
			}
		} else {
			p := c.sending.p
			n, err = c.nc.Write(p[c.sent:min(len(p), c.sent+plainChunk)])
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
		if c.shut && !c.closed && c.tls != nil && c.tls.sayGoodbye() {
			continue
		}
		if c.shut || c.drained == nil || !c.armed.Load() {
			break
		}
		if !mayDrain {
			c.mu.Unlock()
			go c.drain() // only to call Drained
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
	c.stalled = false
	c.charge()
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
	if len(c.out) == 0 && c.queue == nil || c.closed {
		return !c.closed && c.tls != nil && c.tls.wire.pending()
	}
	c.sent = 0
	if len(c.out) > 0 {
		c.learn(len(c.out))
	}
	if c.queue == nil {
		c.sending, c.out = chunk{p: c.out}, nil
	} else {
		c.queueOut()
		c.sending = *c.queue
		c.queue, c.last, c.queued = nil, nil, 0
	}
	if c.stalled {
		c.unsent = c.copied()
	}
	return true
}

// learn lets the next output begin with a buffer that would have held this one:
// a connection with large or many answers takes one buffer, not a ladder of
// them. It forgets slowly.
func (c *Conn) learn(n int) {
	class := int8(bufferClass(min(n, plainChunk)))
	c.outClass = max(class, c.outClass-1)
}

// wrote notes that the socket took n bytes and reports whether all that the writer
// took is written.
func (c *Conn) wrote(n int) (done bool) {
	c.size.Add(-int64(n))
	for c.sent += n; c.sending.p != nil && c.sent >= len(c.sending.p); {
		c.sent -= len(c.sending.p)
		c.sending.release()
	}
	c.wake()
	return c.sending.p == nil
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
	for c.sending.p != nil {
		c.size.Add(-int64(len(c.sending.p) - c.sent))
		c.sent = 0
		c.sending.release()
	}
	if c.tls != nil {
		c.tls.wire.drop()
	}
	c.mu.Lock()
	c.broken = true
	c.gone.Store(true)
	c.writing = false
	c.stalled = false
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
	if c.queue != nil {
		for c.queue.p != nil {
			c.size.Add(-int64(len(c.queue.p)))
			c.queue.release()
		}
		c.queue, c.last, c.queued = nil, nil, 0
	}
	c.charge()
	if c.waiter != nil {
		c.waiter.Broadcast()
	}
}

// pushRaw writes what the socket takes now.
func (c *Conn) pushRaw(fd uintptr) { c.writeReady(fd) }

// writeReady is called by RawConn.Write, first at once; false means: wait until
// the socket may have room and call again.
func (c *Conn) writeReady(fd uintptr) bool {
	var n int
	var again bool
	var err error
	if c.tls != nil {
		n, again, err = c.tls.writeOnce(fd)
	} else if c.sending.next == nil {
		n, again, err = writeOnce(fd, c.sending.p[c.sent:])
	} else {
		n, again, err = gatherOnce(fd, c.sending.p[c.sent:], c.sending.next)
	}
	c.writeN, c.writeErr = int32(n), err
	return !again || n > 0
}
