package conn

import (
	"errors"
	"sync"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// Acks sends the PUBACKs of one connection in the order of its messages.
type Acks struct {
	conn *clientconn.Conn

	mu    sync.Mutex
	first uint64        // under mu: the number of open[0], counted from the connection's start
	open  []expectedAck // under mu: the messages from the oldest that is not acknowledged on
}

type expectedAck struct {
	packetID uint16
	given    bool // by Give
	settled  bool // a transaction has acknowledged it: no PUBACK follows
	settling bool // a transaction that may acknowledge it is under way
}

// ErrAcknowledged says that a message was acknowledged before.
var ErrAcknowledged = errors.New("the message was acknowledged before, or another transaction that settles it is under way")

// Expect notes a message and returns the number by which it is acknowledged.
func (a *Acks) Expect(packetID uint16) (number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = append(a.open, expectedAck{packetID: packetID})
	return a.first + uint64(len(a.open)) - 1
}

// Give acknowledges a message. While a transaction that may do so is under way, that waits for
// its outcome.
func (a *Acks) Give(number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.find(number); e != nil {
		e.given = true
		a.send()
	}
}

// BeginSettling begins a transaction that acknowledges a message. The error is ErrAcknowledged.
func (a *Acks) BeginSettling(number uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.find(number)
	if e == nil || e.given || e.settled || e.settling {
		return ErrAcknowledged
	}
	e.settling = true
	a.conn.Settle()
	return nil
}

// EndSettling says what came of the transaction.
func (a *Acks) EndSettling(number uint64, settled bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.find(number); e != nil && e.settling {
		e.settling, e.settled = false, settled
		if !settled {
			a.conn.Unsettle()
		}
		a.send()
	}
}

// IsOf tells whether these are the messages of a connection.
func (a *Acks) IsOf(c *Conn) bool { return a.conn == c.Conn }

// Ended tells whether the connection has ended: its messages cannot be acknowledged any more.
func (a *Acks) Ended() bool {
	select {
	case <-a.conn.Done():
		return true
	default:
		return false
	}
}

// find returns a message, nil if it was acknowledged before. The caller holds mu.
func (a *Acks) find(number uint64) *expectedAck {
	if number < a.first {
		return nil
	}
	return &a.open[number-a.first]
}

// send sends the acknowledgements that may leave. The caller holds mu.
func (a *Acks) send() {
	for len(a.open) > 0 && !a.open[0].settling && (a.open[0].given || a.open[0].settled) {
		if !a.open[0].settled {
			a.conn.Acknowledge(1, a.open[0].packetID)
		}
		a.open = a.open[1:]
		a.first++
	}
}
