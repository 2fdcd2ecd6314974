package bridge

import (
	"errors"
	"net"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

const (
	// outputQoS0 is how many bytes may wait to be written before messages of QoS 0 are dropped.
	outputQoS0 = 1 << 20
	// outputBytes is how many bytes may wait before the reader at the other end waits as well.
	outputBytes = 16 << 20
	// outputOwn is how many bytes of the link's own acknowledgements may wait. A broker is owed no
	// more than it was told it may have under way; one that goes on sending and takes none is not waited for.
	outputOwn = 64 << 10
	// outputKept is the largest buffer that is kept when it has been written.
	outputKept = 256 << 10
	// stall is how long a broker may take nothing of what is written to it.
	stall = 30 * time.Second
)

// output is what is to be written to one broker. The readers append to it and do not wait for the
// broker, so that two brokers which both wait until they can write cannot wait for each
// other over the link.
type output struct {
	nc   net.Conn
	more chan struct{} // there is something to write
	room chan struct{} // something has been written
	gone chan struct{} // closed when the writer has ended
	part bool          // the writer has ended within a packet; read after gone

	mu  lockrank.Mutex[lockrank.BridgeOutput]
	buf []byte // under mu
	own int    // under mu: bytes of buf that are the link's own acknowledgements
}

func newOutput(nc net.Conn) *output {
	return &output{nc: nc, more: make(chan struct{}, 1), room: make(chan struct{}, 1), gone: make(chan struct{})}
}

// append appends a packet.
func (o *output) append(encode func(dst []byte) []byte) {
	o.mu.Lock()
	o.buf = encode(o.buf)
	o.mu.Unlock()
	signal(o.more)
}

// acknowledge appends an acknowledgement of the link's own, which the other broker has no part in. It
// says false if the broker takes none of those before.
func (o *output) acknowledge(encode func(dst []byte) []byte) (taken bool) {
	o.mu.Lock()
	before := len(o.buf)
	o.buf = encode(o.buf)
	o.own += len(o.buf) - before
	taken = o.own <= outputOwn
	o.mu.Unlock()
	signal(o.more)
	return taken
}

// size is how many bytes wait.
func (o *output) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.buf)
}

// awaitRoom waits until fewer than outputBytes bytes wait, or the writer has ended.
func (o *output) awaitRoom() {
	for o.size() >= outputBytes {
		select {
		case <-o.room:
		case <-o.gone:
			return
		}
	}
}

// write writes what is appended, and a PINGREQ each interval, until the connection fails or
// stop is closed.
func (o *output) write(interval time.Duration, stop <-chan struct{}) error {
	defer close(o.gone)
	ping := time.NewTicker(interval)
	defer ping.Stop()
	var spare []byte
	for {
		select {
		case <-o.more:
		case <-ping.C:
			o.append(mqtt.AppendPingreq)
			continue
		case <-stop:
			return nil
		}
		o.mu.Lock()
		b := o.buf
		o.buf, o.own = spare[:0], 0
		o.mu.Unlock()
		signal(o.room)
		if err := o.send(b, stop); err != nil {
			o.part = true
			return err
		}
		if spare = b; cap(spare) > outputKept {
			spare = nil
		}
	}
}

// errStopped ends a writer between two parts of what it writes.
var errStopped = errors.New("the bridge ends")

// send writes b, until stop is closed. A broker that takes a part of it within stall may take the rest as well.
func (o *output) send(b []byte, stop <-chan struct{}) error {
	const part = 64 << 10
	for len(b) > 0 {
		select {
		case <-stop:
			return errStopped
		default:
		}
		if err := o.nc.SetWriteDeadline(time.Now().Add(stall)); err != nil {
			return err
		}
		n, err := o.nc.Write(b[:min(len(b), part)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// signal makes a receiver of c look again.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
