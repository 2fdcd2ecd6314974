package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/relief"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// memorySource is the Broker as package relief sees it.
type memorySource Broker

// Holders gives the connections that there are.
func (src *memorySource) Holders() []relief.Holder {
	src.mu.Lock()
	defer src.mu.Unlock()
	holders := make([]relief.Holder, 0, len(src.conns))
	for c := range src.conns {
		holders = append(holders, (*holder)(c))
	}
	return holders
}

// holder is a Conn as package relief sees it.
type holder Conn

// Waiting is how many bytes wait in memory for the client: in the connection's output,
// behind acknowledgements, and in a queue that ends with the connection.
func (h *holder) Waiting() int64 {
	n := int64(h.Transport.Size()) + h.acks.Waiting()
	if !h.Connected.Load() || h.Stopping.Load() {
		return n
	}
	s := h.session
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Peer == &h.Peer && !s.Persistent() {
		n += s.Routed.InMemory + s.Direct.InMemory
	}
	return n
}

// Unfinished is how many bytes of a packet have come that is not complete.
func (h *holder) Unfinished() int64 { return int64(h.Transport.HeldInput()) }

// Progressed says whether the client has sent something since the call before. What the
// reader doesn't read, because it works or waits for memory, the client can't send.
func (h *holder) Progressed() bool {
	heard := h.heard.And(^heardRelief)&heardRelief != 0
	return heard || h.Transport.AwaitsMemory() || readerState(h.readerState.Load()) != readerListens
}

// Relieve closes the connection.
func (h *holder) Relieve(bytes int64) {
	h.b.Counters.Relieved.Add(1)
	h.b.Log.Warn("closing the connection that holds most, as memory for traffic is at its bound (--max-memory)",
		"client", h.Client, "remote", h.Remote(), "bytes", bytes)
	h.Disconnect(mqtt.QuotaExceeded, "this client holds most of the memory, which is at its bound (--max-memory)")
	if h.Transport.Size() >= relief.Least {
		h.Transport.Close() // what it doesn't take would only go on being held
	}
}
