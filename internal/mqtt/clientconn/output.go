package clientconn

import (
	"context"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

const (
	// roomBytes of output may wait for the socket before callers wait.
	roomBytes = 256 << 10
	// keepBytes is the largest output buffer that is kept for reuse.
	keepBytes = 1 << 20
	// maxAcks is how many acknowledgements may wait for the socket: far more than a server
	// that reads them leaves waiting.
	maxAcks = 3 * 65_535
	// closeGrace is how long close tries to write what is left, and how long the reader
	// looks for a DISCONNECT after a write has failed.
	closeGrace = time.Second
)

// output is what is to be written to the socket: a buffer that goroutines append packets
// to and that one goroutine, the writer, empties.
//
// While the reader handles the packets of one read it holds the writer back, so that the
// acknowledgements, and the requests of goroutines that these packets have woken, leave
// together. The writer lets all goroutines run that can before it takes the buffer, for the
// same reason.
type output struct {
	nc net.Conn

	mu      sync.Mutex
	filled  sync.Cond     // on mu: the writer has something to do
	pending []byte        // under mu
	acks    int           // under mu: acknowledgements in pending
	held    bool          // under mu: the reader holds the writer back
	room    chan struct{} // under mu: closed when the writer has taken pending; nil: no caller waits
	writes  uint64        // under mu: how often the writer has taken pending
	closing bool          // under mu: nothing may be appended any more
	err     error         // under mu: the first failure of a write

	drained chan struct{} // closed when the writer has ended
}

func newOutput(nc net.Conn) *output {
	o := &output{nc: nc, drained: make(chan struct{})}
	o.filled.L = &o.mu
	return o
}

// ended reports whether nothing can be appended any more. The caller holds mu.
func (o *output) ended() bool { return o.closing || o.err != nil }

// append adds what encode appends to its argument. A packet of more than most bytes, if
// most is not 0, is left out, with errTooLarge.
func (o *output) append(most uint32, encode func([]byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended() {
		return ErrEnded
	}
	before := len(o.pending)
	o.pending = encode(o.pending)
	if most > 0 && len(o.pending)-before > int(most) {
		o.pending = o.pending[:before]
		return ErrTooLarge
	}
	if !o.held {
		o.filled.Signal()
	}
	return nil
}

// acknowledge adds an acknowledgement. It fails if too many wait for the socket.
func (o *output) acknowledge(t mqtt.Type, packetID uint16, code mqtt.ReasonCode) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended() {
		return nil // the connection is at its end: the server sends the message again
	}
	if o.acks++; o.acks > maxAcks {
		return errUnreadAcks
	}
	o.pending = mqtt.AppendAck(o.pending, mqtt.V5, t, packetID, code, "")
	if !o.held {
		o.filled.Signal()
	}
	return nil
}

// ping adds a PINGREQ, which leaves even while the writer is held back.
func (o *output) ping() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended() {
		o.pending = mqtt.AppendPingreq(o.pending)
		o.held = false
		o.filled.Signal()
	}
}

// hold keeps the writer back until release.
func (o *output) hold() {
	o.mu.Lock()
	o.held = true
	o.mu.Unlock()
}

func (o *output) release() {
	o.mu.Lock()
	o.held = false
	if len(o.pending) > 0 {
		o.filled.Signal()
	}
	o.mu.Unlock()
}

// write writes what comes, until there is nothing left and the output is closing, or a
// write fails.
func (o *output) write() {
	defer close(o.drained)
	var batch []byte
	for {
		if batch = o.take(batch); batch == nil {
			return
		}
		if _, err := o.nc.Write(batch); err != nil {
			o.fail(err)
			return
		}
		if cap(batch) > keepBytes {
			batch = nil
		}
	}
}

// take waits for output, and takes it in exchange for a buffer. It returns nil at the end.
func (o *output) take(buffer []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (len(o.pending) == 0 || o.held) && !o.closing {
		o.filled.Wait()
		if len(o.pending) > 0 && !o.closing {
			o.mu.Unlock()
			runtime.Gosched()
			o.mu.Lock()
		}
	}
	if len(o.pending) == 0 {
		return nil
	}
	taken := o.pending
	o.pending, o.acks = buffer[:0], 0
	o.writes++
	o.wake()
	return taken
}

// wake wakes the callers that wait for room. The caller holds mu.
func (o *output) wake() {
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
}

// fail notes that a write has failed. The reader may still find a DISCONNECT that came
// before.
func (o *output) fail(err error) {
	o.mu.Lock()
	if !o.closing {
		o.err = err
	}
	o.pending = nil
	o.wake()
	o.mu.Unlock()
	_ = o.nc.SetReadDeadline(time.Now().Add(closeGrace))
}

// waitRoom blocks while too much output waits for the socket.
func (o *output) waitRoom(ctx context.Context) error {
	for {
		o.mu.Lock()
		if len(o.pending) < roomBytes || o.ended() {
			o.mu.Unlock()
			return nil
		}
		if o.room == nil {
			o.room = make(chan struct{})
		}
		room := o.room
		o.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// count is how often the writer has taken output.
func (o *output) count() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writes
}

// cause is the first failure of a write.
func (o *output) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// shut adds a DISCONNECT, unless it is nil, and ends the output. It is false if it was
// called before.
func (o *output) shut(d *mqtt.Disconnect) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing {
		return false
	}
	if d != nil && o.err == nil {
		o.pending = mqtt.AppendDisconnect(o.pending, mqtt.V5, d)
	}
	o.closing = true
	o.wake()
	o.filled.Signal()
	return true
}

// close shuts the output, writes what is left for at most closeGrace, and closes the
// socket.
func (o *output) close(d *mqtt.Disconnect) {
	if o.shut(d) {
		_ = o.nc.SetWriteDeadline(time.Now().Add(closeGrace))
	}
	<-o.drained
	_ = o.nc.Close()
}
