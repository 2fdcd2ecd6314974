package broker

import "sync/atomic"

// Stats counts what the broker did since it started; Queued, QueuedBytes
// and Subscriptions are levels. Each may be read at any time.
type Stats struct {
	PacketsIn          atomic.Int64 // packets received
	PacketsPaced       atomic.Int64 // of these, packets of clients that sent more than their share, whose readers took turns
	MessagesIn         atomic.Int64 // PUBLISH packets received
	MessagesOut        atomic.Int64 // PUBLISH packets sent
	Connects           atomic.Int64 // connections accepted
	Refused            atomic.Int64 // connections refused in CONNACK
	Takeovers          atomic.Int64 // connections closed because their client came again
	KeepAliveTimeouts  atomic.Int64 // connections closed because nothing was heard
	SessionsExpired    atomic.Int64
	SessionsDisplaced  atomic.Int64 // sessions ended to make room for others: away, with nothing queued
	SessionsOverflowed atomic.Int64 // sessions ended because their queue was full
	NearFull           atomic.Int64 // times that a session's queue, or all together, came within a fifth of the bound
	Dropped            atomic.Int64 // messages dropped: QoS 0 to a full output, or the oldest of a full queue
	Expired            atomic.Int64 // messages dropped because their expiry interval passed
	TooLarge           atomic.Int64 // messages dropped because the receiver takes no packet that large
	Rejected           atomic.Int64 // publishes refused at a bound
	Unauthorized       atomic.Int64 // publishes refused for lack of permission
	Wills              atomic.Int64 // wills published
	Relieved           atomic.Int64 // connections closed because they held most when memory was at its bound
	Panics             atomic.Int64 // connections closed because of a defect
	Queued             atomic.Int64 // QoS 1 and 2 messages kept in sessions' queues: not those that were sent and would not be sent again
	QueuedBytes        atomic.Int64 // their bytes
	Subscriptions      atomic.Int64
}

// Stats gives the broker's counters.
func (b *Broker) Stats() *Stats { return &b.stats }

// Levels are figures that are counted when they are asked for.
type Levels struct {
	Connections   int // network connections
	Sessions      int // connected and away
	Retained      int // retained messages, without those on $SYS
	RetainedBytes int64
}

// Levels gives the current figures.
func (b *Broker) Levels() Levels {
	b.mu.Lock()
	conns, sessions := len(b.conns), len(b.sessions)
	b.mu.Unlock()
	return Levels{Connections: conns, Sessions: sessions, Retained: int(b.retained.count.Load()), RetainedBytes: b.retained.bytes.Load()}
}
