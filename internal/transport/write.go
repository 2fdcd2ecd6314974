package transport

import (
	"time"
	"unsafe"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/transport/nowait"
)

// How output leaves.
//
//	appenders ──append──▶ queue, out ──take──▶ sending ──write──▶ socket
//	             (mu)                  (mu)             (the writer alone, no lock)
//
// Output is appended under mu: small pieces are copied to the end of out, a
// pooled buffer. A large payload that several connections share (AppendShared) is not
// copied: a chunk refers to it. Chunks are in queue, and out comes after them.
//
// At most one goroutine at a time is the writer of a connection: the one that, under
// mu, found writing false and set it. The writer moves all of queue and out to
// sending, and appenders start with an empty buffer while it writes. It writes all of
// sending before it takes more, so bytes leave in the order in which they were
// appended. Before the writer gives up its role it checks, under mu, for new output.
// A Flush that finds a writer can therefore return: the writer will take its bytes.
//
// The goroutine that removes a chunk releases the chunk's owner. That is the writer,
// when it has written the chunk or its write has failed, or the goroutine that drops
// the output, under mu.
//
// The goroutine that calls Flush is the first writer; its writes never wait (push). If
// the socket does not take everything, the role passes to a goroutine of this
// connection (drain), which waits for room and ends when no output is left. While a
// peer stalls, a Flush therefore only acquires mu and reads writing. Connections on the
// plain path cannot write without waiting; there the role goes to that goroutine at once.
//
// Output is charged to the pool of memory once the socket has not taken all of it
// (stalled). On the plain path, which cannot know that in advance, all output beyond
// freeOutput is charged. So a connection whose peer reads changes no counter. The
// owner of a shared chunk charges it, once for all connections.
//
// The Drained callback runs while its caller is still the writer. A Flush within it
// therefore returns at once, and the next round of the writer's loop writes its bytes:
// there is no recursion, however long the queue that Drained feeds from.

const (
	// outRoom is the room that Out guarantees: small packets never make append
	// leave the pooled buffer.
	outRoom = 512
	// firstOut is the size of the first output buffer of a connection.
	firstOut = 2 << 10
	// pushRounds bounds how often a caller of Flush writes for a connection whose
	// Drained callback refills it; after that, the connection's own goroutine writes.
	pushRounds = 4
	// plainChunk bounds one blocking write of the plain path, so that Size falls
	// as the peer reads. On either path it bounds the buffer with which learn begins.
	plainChunk = 64 << 10
	// freeOutput is how many bytes of a connection's output are not charged on the
	// plain path, which cannot tell a peer that stalls from one that reads.
	freeOutput = 2 << 10
	// maxGathered bounds the chunks that one system call writes.
	maxGathered = 8
)

// Owner owns bytes that were appended by reference.
type Owner interface {
	// Release is called once, when the connection no longer needs the bytes. The
	// caller may hold the connection's output lock, so Release must neither block nor
	// call the connection.
	Release()
}

// chunk is a part of the output: a pooled buffer, or an owner's bytes.
type chunk struct {
	p     []byte
	owner Owner // nil: p is a buffer of the pool
	next  *chunk
}

// release releases the chunk's bytes and replaces the chunk by its successor, or by an
// empty chunk if there is none.
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

// Lock locks the output. Between Lock and Unlock the caller may call Out, SetOut,
// Append, AppendShared and Grow, and nothing that could wait.
func (c *Conn) Lock() { c.mu.Lock() }

// Unlock unlocks the output. The caller must call Flush or FlushSoon later, at the
// latest when it has handled all input that it has read.
func (c *Conn) Unlock() { c.mu.Unlock() }

// Out returns the output so far for the caller to append to. The caller passes the
// result to SetOut before it calls Unlock. There is room for 512 bytes; call Grow first
// for more. Needs the lock.
func (c *Conn) Out() []byte {
	if cap(c.out)-len(c.out) < outRoom {
		return c.grow(outRoom)
	}
	return c.out
}

// SetOut replaces the output by p, which must be the result of Out with bytes appended.
// The connection owns p from then on: the caller must keep no slice of it. After Shut,
// Close or a failed write SetOut drops p. Needs the lock.
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
	if len(p) == 0 { // the caller appended nothing
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

// AppendShared appends p without copying it. It takes over one reference to owner, and p
// must not change until that is released. It is for payloads from about 16 KiB on, where
// a reference costs less than a copy, above all if many connections get the same
// payload. Needs the lock.
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
	case c.out != nil: // the caller of Out appended nothing
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

// charge charges the pool with the output that waits; if the connection is not stalled,
// with nothing. Needs the lock.
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

// stall marks the connection as stalled, because the socket has not taken all output,
// and charges the output that waits. Only the writer calls it.
func (c *Conn) stall() {
	c.mu.Lock()
	c.stalled = true
	c.unsent = c.copied()
	c.charge()
	c.mu.Unlock()
}

// copied counts the bytes in pooled buffers that are still to be written. Only the
// writer calls it.
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

// Grow makes room for n more bytes in a pooled buffer, so that append does not allocate.
// n must be the number of bytes that the caller is about to append, not a length that
// the peer has sent. Needs the lock.
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

// Full reports whether Size has reached the output limit. If so, the writer will call
// Drained when the output is empty.
func (c *Conn) Full() bool {
	if c.size.Load() < int64(c.outputLimit) {
		return false
	}
	c.arm()
	// This goroutine sets armed, then reads size. The writer lowers size, then reads
	// armed. So at least one of the two sees what the other has written.
	return c.size.Load() >= int64(c.outputLimit)
}

// WantDrained makes the writer call Drained when the output is empty. If it is empty
// already, WantDrained returns false and Drained is not called.
func (c *Conn) WantDrained() bool {
	c.arm()
	if c.size.Load() > 0 {
		return true
	}
	// If another goroutine has cleared armed, that goroutine is calling Drained.
	return !c.armed.CompareAndSwap(true, false)
}

func (c *Conn) arm() {
	if !c.armed.Load() {
		c.armed.Store(true)
	}
}

// Flush writes the output and never waits. A goroutine of this connection writes later
// what the socket does not take now.
func (c *Conn) Flush() { c.flush(true) }

// FlushOnly is Flush for a caller on whose goroutine Drained must not run, because the
// caller holds locks or other goroutines wait for it. A goroutine of this connection
// then runs Drained.
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

// FlushSoon queues the connection for one of the flushers, which calls Flush. If the
// connection is queued already, FlushSoon costs one atomic operation.
func (c *Conn) FlushSoon() {
	if c.flushers == nil {
		c.Flush()
		return
	}
	c.flushers.soon.push(c)
}

// FlushBulk is FlushSoon for a notification, which may go to very many connections at once.
// It uses a queue of its own, so that connections queued by FlushSoon do not wait for them.
func (c *Conn) FlushBulk() {
	if c.flushers == nil {
		c.Flush()
		return
	}
	c.flushers.bulk.push(c)
}

// write starts the work of the writer, which the caller has just become.
func (c *Conn) write(mayDrain bool) {
	if c.raw != nil || c.stream() != nil {
		c.push(mayDrain)
	} else {
		c.stall()
		go c.drain()
	}
}

// push is the writer whose writes never wait. It calls Drained only if mayDrain is true.
func (c *Conn) push(mayDrain bool) {
	stream := c.stream()
	for range pushRounds {
		if c.sending.p == nil && !c.take(mayDrain) {
			return
		}
		var err error
		if stream != nil {
			var n int
			n, err = stream.TryWrite(c.sending.p[c.sent:])
			c.writeN = int32(n)
		} else if err = c.raw.Control(c.pushable); err == nil { // unlike Write, it does not prepare the network poller for a wait
			err = c.writeErr
		}
		if err != nil {
			c.fail(err)
			return
		}
		if !c.wrote(int(c.writeN)) && (stream == nil || c.writeN == 0) && (c.tls == nil || c.tls.wire.blocked) {
			break
		}
	}
	c.stall()
	go c.drain()
}

// drain is the writer that waits for room in the socket. It may begin in the middle of a
// buffer of which push has written a part.
func (c *Conn) drain() {
	writable := c.writeReady
	for {
		if c.sending.p == nil && !c.take(true) {
			return
		}
		c.stall() // before the write, which may wait: the output must be charged meanwhile
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

// take moves all appended output to sending, after calling Drained if that is due. It
// returns false if there is no output, or if Drained is due and mayDrain is false: then
// the caller is no longer the writer.
func (c *Conn) take(mayDrain bool) bool {
	c.mu.Lock()
	for {
		if c.takeOut() {
			c.mu.Unlock()
			return true
		}
		if c.shut && !c.closed && c.tls != nil && c.tls.sealCloseNotify() {
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
	putBuffer(c.out) // the caller of Out appended nothing
	c.out = nil
	c.writing = false
	c.stalled = false
	c.charge()
	last := c.shut && !c.closed
	c.closed = c.closed || last
	c.mu.Unlock()
	if last {
		c.closeWritten()
	}
	return false
}

// takeOut moves all appended output to sending and returns false if there is none.
// Needs the lock.
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

// learn makes the next output begin with a buffer as large as the last n bytes of output
// needed, so that a connection with large or many responses does not go through buffers
// of each smaller size. The size class falls by at most one each time.
func (c *Conn) learn(n int) {
	class := int8(bufferClass(min(n, plainChunk)))
	c.outClass = max(class, c.outClass-1)
}

// wrote notes that the socket took n bytes and reports whether all of sending is
// written.
func (c *Conn) wrote(n int) (done bool) {
	c.size.Add(-int64(n))
	for c.sent += n; c.sending.p != nil && c.sent >= len(c.sending.p); {
		c.sent -= len(c.sending.p)
		c.sending.release()
	}
	c.wake()
	return c.sending.p == nil
}

// wake wakes WaitOutput if Size is below its limit. The order matters as in Full: the
// caller has lowered size before wake reads waiting.
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

// fail drops all output and ends the role of the writer, after a write error.
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

// dropOutput drops the output that no writer has taken, and wakes WaitOutput. Needs the
// lock.
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

// pushRaw writes what the socket takes without a wait.
func (c *Conn) pushRaw(fd uintptr) { c.writeReady(fd) }

// writeReady writes what the socket takes without a wait. RawConn.Write calls it, and
// calls it again when the socket may have room if it has returned false.
func (c *Conn) writeReady(fd uintptr) bool {
	var n int
	var again bool
	var err error
	if c.tls != nil {
		n, again, err = c.tls.writeOnce(fd)
	} else if c.sending.next == nil {
		n, again, err = nowait.Write(fd, c.sending.p[c.sent:])
	} else {
		n, again, err = gatherOnce(fd, c.sending.p[c.sent:], c.sending.next)
	}
	c.writeN, c.writeErr = int32(n), err
	return !again || n > 0
}
