package transport

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/transport/nowait"
)

// How TLS takes the raw path.
//
//	socket ──read──▶ crypto/tls ──decrypt──▶ in                          (the reader)
//	sending ──encrypt──▶ crypto/tls ──▶ sealed ──take──▶ record ──write──▶ socket  (the writer)
//
// crypto/tls reads and writes a net.Conn. During the handshake this is a wire that
// waits, like any connection. Once a [Conn] is made of the connection, the wire does not
// wait any more: a read that finds nothing on the descriptor returns errNotYet, which
// crypto/tls takes for a temporary error, so that the same read can be repeated when the
// descriptor is readable; and a write only appends to sealed, so encrypting never waits
// and never fails half-way. What is sealed leaves with one system call, by the rules of
// write.go. An idle connection has its reader wait outside of crypto/tls, on a small
// stack and with no buffer but that of crypto/tls.
//
// The reader may have to write as well: an answer to a KeyUpdate, an alert. crypto/tls
// encrypts under a lock of its own and calls the wire under it, so the order of records
// in sealed is that of their sequence numbers, whichever goroutine they come from. The
// reader then becomes the writer, if there is none.

const (
	// sealAtOnce is how much is encrypted for one system call. It is held as
	// ciphertext while the peer doesn't take it.
	sealAtOnce = 64 << 10
	// recordOverhead bounds what encryption adds to a record of up to 16 KiB.
	recordOverhead, maxRecord = 64, 16 << 10
	// maxAnswers is how many answers to KeyUpdates may wait while the peer takes no output. Besides
	// them the writer seals a few small records at a time. A peer changes its keys after millions
	// of records, and is owed one answer then.
	maxAnswers = 64
	// answerSize is how many bytes an answer to a KeyUpdate has, in a record.
	answerSize = 27
	// A peer may send records without data, or padding, for ever. Those that change the keys cost
	// the reader ten times as much as others. So it is slowed, by a pause for each read, when it
	// has sent silentBytes, and bytesPerData for each byte of data.
	silentBytes, bytesPerData = 32 << 10, 64
	silentPause               = 10 * time.Millisecond
	// freeRecords is how much crypto/tls may hold of records without being charged
	// for it. It keeps its buffer, which has the size of the largest record so far.
	freeRecords = 4 << 10
)

// TLSConn is the server's side of a TLS connection. NewConn gives it the raw path if it
// is made of a socket; otherwise it is a usual net.Conn.
type TLSConn struct {
	*tls.Conn
	wire          *wire
	closeNotified bool // Conn.mu: the alert that ends the stream (close_notify) was encrypted
}

// NewTLSConn makes a TLSConn of nc, which it owns. Its config should disable dynamic
// record sizes: one flush is one record then.
func NewTLSConn(nc net.Conn, config *tls.Config) *TLSConn {
	w := &wire{Conn: nc}
	return &TLSConn{Conn: tls.Server(w, config), wire: w}
}

// Turns bounds how many handshakes compute at the same time. Those that wait for their
// peer don't count.
type Turns chan struct{}

// NewTurns makes Turns for n handshakes at a time.
func NewTurns(n int) Turns {
	t := make(Turns, n)
	for range n {
		t <- struct{}{}
	}
	return t
}

// ErrLongHandshake is the error of a handshake in which the peer has sent too much.
var ErrLongHandshake = errors.New("transport: the peer sent too many bytes in its TLS handshake")

// ErrKeyUpdates is the error of a read from a peer that asks for new keys again and again, and
// does not take the answers.
var ErrKeyUpdates = errors.New("transport: the peer asks for new TLS keys and does not take the answers")

// Accept does the handshake, in which the peer may send at most most bytes. The caller
// bounds it in time by a deadline.
func (t *TLSConn) Accept(turns Turns, most int) error {
	t.wire.turns, t.wire.left = turns, most
	<-turns
	err := t.Handshake()
	turns <- struct{}{}
	t.wire.turns = nil
	return err
}

// Close sends the alert that ends the stream and closes, where that can wait for the peer;
// after NewConn it closes the socket, and Shut sends the alert.
func (t *TLSConn) Close() error {
	if t.wire.conn != nil {
		return t.wire.Conn.Close()
	}
	return t.Conn.Close()
}

// wire is what crypto/tls reads and writes.
type wire struct {
	net.Conn // the socket

	turns Turns // during the handshake
	left  int   // during the handshake: bytes that the peer may still send

	conn *Conn   // nil: reads and writes wait; set by NewConn
	fd   uintptr // the reader's, during a read

	silent int32 // the reader's: bytes read beyond those that data came in

	mu      lockrank.Mutex[lockrank.Sealed]
	sealed  []byte // mu: encrypted, not yet taken by the writer
	answers int32  // mu: records in sealed that are as small as an answer to a KeyUpdate

	held atomic.Int32 // bytes that the pool of memory is charged with for what crypto/tls keeps of records; written by the reader

	record   []byte // the writer's: taken from sealed, being written
	written  int    // the writer's: how much of record the socket has
	plain    int    // the writer's: how many bytes of Conn.sending are in record
	credited int    // the writer's: how many of them were reported as written
	blocked  bool   // the writer's: the socket takes nothing at the moment
	failed   error  // the writer's: encrypting has failed; record is the last one
}

// NetConn is the socket.
func (w *wire) NetConn() net.Conn { return w.Conn }

// notYet is the error of a read that would have to wait.
type notYet struct{}

func (notYet) Error() string   { return "transport: nothing to read yet" }
func (notYet) Timeout() bool   { return true }
func (notYet) Temporary() bool { return true }

var errNotYet net.Error = notYet{}

// Read implements net.Conn for crypto/tls.
func (w *wire) Read(p []byte) (int, error) {
	if w.conn == nil {
		return w.readWaiting(p)
	}
	if !w.hold(int32(len(p))) {
		return 0, ErrNoMemory
	}
	n, again, err := nowait.Read(w.fd, p)
	if again {
		return 0, errNotYet
	}
	if w.silent = min(w.silent+int32(max(0, n)), 2*silentBytes); w.silent > silentBytes {
		time.Sleep(silentPause)
	}
	return n, err
}

// hold charges the buffer into which crypto/tls reads, and of which n bytes are free. It
// says false if a client that hasn't said who it is finds no room.
func (w *wire) hold(n int32) bool {
	more := n - freeRecords - w.held.Load()
	if more <= 0 {
		return true
	}
	if c := w.conn; !c.memory.Take(c.inputKind, int64(more)) {
		if c.inputKind == memory.Unconnected {
			return false
		}
		c.memory.Charge(c.inputKind, int64(more)) // as holdInput does
	}
	w.held.Add(more)
	return true
}

func (w *wire) readWaiting(p []byte) (n int, err error) {
	if w.turns == nil {
		return w.Conn.Read(p)
	}
	if w.left <= 0 {
		return 0, ErrLongHandshake
	}
	w.turns <- struct{}{}
	n, err = w.Conn.Read(p[:min(len(p), w.left)])
	<-w.turns
	w.left -= n
	return n, err
}

// Write implements net.Conn for crypto/tls.
func (w *wire) Write(p []byte) (n int, err error) {
	switch {
	case w.conn != nil:
		w.seal(p)
		return len(p), nil
	case w.turns != nil:
		w.turns <- struct{}{}
		n, err = w.Conn.Write(p)
		<-w.turns
		return n, err
	}
	return w.Conn.Write(p)
}

// seal appends to sealed.
func (w *wire) seal(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room(len(p))
	w.sealed = append(w.sealed, p...)
	if len(p) <= answerSize {
		w.answers++
	}
}

// room makes sealed large enough for n more bytes. mu is held.
func (w *wire) room(n int) {
	if cap(w.sealed)-len(w.sealed) >= n {
		return
	}
	b := getBuffer(len(w.sealed) + n)[:len(w.sealed)]
	copy(b, w.sealed)
	if w.sealed != nil {
		putBuffer(w.sealed)
	}
	w.sealed = b
}

// SetWriteDeadline does nothing on the raw path, where no write waits but the writer's,
// which Conn bounds. crypto/tls sets a deadline for the alert that ends the stream.
func (w *wire) SetWriteDeadline(t time.Time) error {
	if w.conn != nil {
		return nil
	}
	return w.Conn.SetWriteDeadline(t)
}

// pending says whether there are records to write. For the writer.
func (w *wire) pending() bool {
	sealed, _ := w.isSealed()
	return len(w.record) > 0 || sealed
}

// isSealed says whether there are records that the writer has not taken yet, and how many of
// them may be answers to a KeyUpdate.
func (w *wire) isSealed() (some bool, answers int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sealed) > 0, w.answers
}

// drop lets go of what was not written. For the writer.
func (w *wire) drop() {
	if w.record != nil {
		putBuffer(w.record)
	}
	w.record, w.written, w.plain, w.credited = nil, 0, 0, 0
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sealed != nil {
		putBuffer(w.sealed)
		w.sealed, w.answers = nil, 0
	}
}

// readOnce is nowait.Read for what the peer has encrypted.
func (t *TLSConn) readOnce(fd uintptr, p []byte) (n int, again bool, err error) {
	t.wire.fd = fd
	n, err = t.Conn.Read(p)
	switch {
	case n > 0: // an error comes again
		err = nil
		t.wire.silent = max(0, t.wire.silent-int32(n)*bytesPerData)
	case err == errNotYet:
		again, err = true, nil
	}
	if sealed, answers := t.wire.isSealed(); answers > maxAnswers {
		n, again, err = 0, false, ErrKeyUpdates
	} else if sealed {
		t.wire.conn.flushSealed()
	}
	return n, again, err
}

// flushSealed writes what the reader has sealed, or what the writer is about to take.
func (c *Conn) flushSealed() {
	c.mu.Lock()
	if c.writing || c.closed || c.broken {
		c.mu.Unlock()
		return
	}
	c.writing = true
	c.mu.Unlock()
	c.write(false)
}

// sealCloseNotify encrypts the alert that ends the stream (close_notify), at the first call
// only, and reports whether there is something to write. Conn.mu is held, and the caller is
// the writer.
func (t *TLSConn) sealCloseNotify() bool {
	if t.closeNotified {
		return false
	}
	t.closeNotified = true
	_ = t.CloseWrite() // fails if the stream has failed
	return t.wire.pending()
}

// writeOnce writes what the socket takes now of the record being written, or of the next
// one. n is how many bytes of Conn.sending this comes to: all of them only when the whole
// record is written. again: the socket takes no more.
func (t *TLSConn) writeOnce(fd uintptr) (n int, again bool, err error) {
	w := t.wire
	if len(w.record) == 0 {
		t.sealNext()
	}
	for w.written < len(w.record) && !again && err == nil {
		var k int
		k, again, err = nowait.Write(fd, w.record[w.written:])
		w.written += k
	}
	w.blocked = again
	if w.written < len(w.record) {
		done := int(int64(w.plain) * int64(w.written) / int64(len(w.record)))
		n, w.credited = done-w.credited, done
		return n, again, err
	}
	n = w.plain - w.credited
	if w.record != nil {
		putBuffer(w.record)
	}
	w.record, w.written, w.plain, w.credited = nil, 0, 0, 0
	return n, false, w.failed
}

// sealNext encrypts the next bytes of Conn.sending, and takes them and whatever else is
// sealed as record.
func (t *TLSConn) sealNext() {
	w, c := t.wire, t.wire.conn
	total := -c.sent
	for k := &c.sending; k != nil && total < sealAtOnce; k = k.next {
		total += len(k.p)
	}
	if total = min(total, sealAtOnce); total > 0 {
		w.mu.Lock()
		w.room(total + (total/maxRecord+maxGathered)*recordOverhead)
		w.mu.Unlock()
	}
	at := c.sent
	for k := &c.sending; k != nil && w.plain < total && w.failed == nil; k = k.next {
		p := k.p[at:min(len(k.p), at+total-w.plain)]
		_, w.failed = t.Conn.Write(p)
		w.plain += len(p)
		at = 0
	}
	w.mu.Lock()
	w.record, w.sealed, w.answers = w.sealed, nil, 0
	w.mu.Unlock()
}
