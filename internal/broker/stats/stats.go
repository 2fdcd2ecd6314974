// Package stats counts what the broker does. The tests of the packages that count check the
// counters, and those of package server the topics of $SYS and the metrics that show them.
package stats

import "sync/atomic"

// Flow are PUBLISH packets of one QoS in one direction.
type Flow struct {
	Messages atomic.Int64
	Bytes    atomic.Int64 // of their payloads
}

// Tally counts PUBLISH packets in one goroutine, to be added to flows. The index is the QoS.
type Tally [3]struct{ messages, bytes int64 }

// Add counts one PUBLISH packet with a payload of so many bytes.
func (t *Tally) Add(qos byte, bytes int) {
	if Counting {
		t[qos].messages++
		t[qos].bytes += int64(bytes)
	}
}

// MoveTo adds what is counted to flows and their total, and forgets it.
func (t *Tally) MoveTo(flows *[3]Flow, total *atomic.Int64) {
	for i := range t {
		if n := &t[i]; n.messages > 0 {
			total.Add(n.messages)
			flows[i].Messages.Add(n.messages)
			flows[i].Bytes.Add(n.bytes)
			n.messages, n.bytes = 0, 0
		}
	}
}

// Counters count what the broker did since it started; Queued, QueuedBytes
// and Subscriptions are levels. Each may be read at any time.
type Counters struct {
	PacketsIn          atomic.Int64 // packets received
	PacketsPaced       atomic.Int64 // of these, packets of clients that sent more than their share, whose readers took turns
	MessagesIn         atomic.Int64 // PUBLISH packets received
	HeldToRate         atomic.Int64 // of these, PUBLISH packets that waited because their principal published faster than it may
	MessagesOut        atomic.Int64 // PUBLISH packets sent
	In, Out            [3]Flow      // the same by QoS
	Connects           atomic.Int64 // connections accepted
	Refused            atomic.Int64 // connections refused in CONNACK
	Displaced          atomic.Int64 // connections closed because their principal had most when all places were taken
	Strangers          atomic.Int64 // connections closed before their CONNECT to make room for others
	Takeovers          atomic.Int64 // connections closed because their client came again
	NotOwned           atomic.Int64 // connections refused because the session belongs to another owner
	Reauthenticated    atomic.Int64 // times that a client has authenticated again on its connection
	IdentitiesExpired  atomic.Int64 // connections closed because the client's token or certificate had expired
	IdentitiesRevoked  atomic.Int64 // connections closed because the client's user is gone or has another password
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
	WillsUnauthorized  atomic.Int64 // wills not published for lack of permission
	SubscriptionsEnded atomic.Int64 // subscriptions ended because they were allowed no more
	AutomaticRefused   atomic.Int64 // automatic subscriptions that were not made
	Wills              atomic.Int64 // wills published
	TimersSet          atomic.Int64 // messages that were kept to be published later, or put in the place of another
	TimersCancelled    atomic.Int64
	TimersPublished    atomic.Int64 // of these messages, those that became due and were published
	TimersRetried      atomic.Int64 // times that one was due, found no room, and waits
	TimersDenied       atomic.Int64 // those dropped for lack of permission when they were due
	TimersRefused      atomic.Int64 // publishes and transactions refused at a bound of timers
	Relieved           atomic.Int64 // connections closed because they held most when memory was at its bound
	Panics             atomic.Int64 // connections closed because of a defect
	Queued             atomic.Int64 // QoS 1 and 2 messages kept in sessions' queues: not those that were sent and would not be sent again
	QueuedBytes        atomic.Int64 // their bytes
	Subscriptions      atomic.Int64
}
