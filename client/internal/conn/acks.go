package conn

import (
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
	given    bool
}

// Expect notes a message and returns the number by which it is acknowledged.
func (a *Acks) Expect(packetID uint16) (number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = append(a.open, expectedAck{packetID: packetID})
	return a.first + uint64(len(a.open)) - 1
}

// Give acknowledges a message.
func (a *Acks) Give(number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if number < a.first {
		return // given before
	}
	a.open[number-a.first].given = true
	for len(a.open) > 0 && a.open[0].given {
		a.conn.Acknowledge(1, a.open[0].packetID)
		a.open = a.open[1:]
		a.first++
	}
}
