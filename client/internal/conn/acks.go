package conn

import "sync"

// Acks sends the PUBACKs of one connection in the order of its messages.
type Acks struct {
	window *window

	mu    sync.Mutex
	first uint64        // under mu: the number of open[0], counted from the connection's start
	open  []expectedAck // under mu: the messages from the oldest that is not acknowledged on
}

type expectedAck struct {
	packetID uint16
	given    bool
}

// Expect notes a message and returns what acknowledges it.
func (a *Acks) Expect(packetID uint16) func() {
	a.mu.Lock()
	defer a.mu.Unlock()
	number := a.first + uint64(len(a.open))
	a.open = append(a.open, expectedAck{packetID: packetID})
	return func() { a.give(number) }
}

func (a *Acks) give(number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if number < a.first {
		return // given before
	}
	a.open[number-a.first].given = true
	for len(a.open) > 0 && a.open[0].given {
		a.window.puback(a.open[0].packetID)
		a.open = a.open[1:]
		a.first++
	}
}
