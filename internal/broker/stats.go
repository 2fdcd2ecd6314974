package broker

import "github.com/holdfast-mqtt/holdfast/internal/broker/delayed"

// Stats gives the broker's counters.
func (b *Broker) Stats() *Stats { return &b.Counters }

// Levels are figures that are counted when they are asked for.
type Levels struct {
	Connections   int // network connections
	Sessions      int // connected and away
	Retained      int // retained messages, without those on $SYS
	RetainedBytes int64
	Timers        delayed.Levels
}

// Levels gives the current figures.
func (b *Broker) Levels() Levels {
	b.mu.Lock()
	conns := len(b.conns)
	b.mu.Unlock()
	return Levels{Connections: conns, Sessions: b.Sessions.Len(), Retained: b.Retained.Len(), RetainedBytes: b.Retained.Bytes(), Timers: b.Timers.Levels()}
}
