package limits

import "sync/atomic"

// InForce are the limits of a broker that runs, and may be changed meanwhile. Its methods are
// safe for concurrent use; Set is called by one goroutine at a time.
type InForce struct {
	now     atomic.Pointer[Limits]
	highest atomic.Pointer[Limits]
}

// Limits are those that count now. What belongs together is read from one result. It is not to
// be changed.
func (f *InForce) Limits() *Limits { return f.now.Load() }

// Highest are limits whose bounds of one queue are the highest that have counted since the
// start. A queue that was filled below a higher bound may be beyond the one that counts now,
// and has done nothing wrong: what must never happen to a queue is judged by these.
func (f *InForce) Highest() *Limits { return f.highest.Load() }

// Set puts limits in force.
func (f *InForce) Set(l Limits) {
	high := l
	if h := f.highest.Load(); h != nil {
		high.MaxQueued = max(l.MaxQueued, h.MaxQueued)
		high.MaxQueuedBytes = max(l.MaxQueuedBytes, h.MaxQueuedBytes)
		high.MaxQueuedMemory = max(l.MaxQueuedMemory, h.MaxQueuedMemory)
	}
	f.highest.Store(&high)
	f.now.Store(&l)
}

// Found raises what Highest says of one queue to what the start has found in it.
func (f *InForce) Found(messages int, bytes int64) {
	high := *f.highest.Load()
	high.MaxQueued, high.MaxQueuedBytes = max(high.MaxQueued, messages), max(high.MaxQueuedBytes, bytes)
	f.highest.Store(&high)
}

// Adjust takes from other limits what may change while a broker runs. The others stay: clients
// were told of them, or they were divided among parts of the broker.
func (l *Limits) Adjust(to *Limits) {
	l.MaxConnections, l.MaxSessions, l.MaxSessionsPerPrincipal = to.MaxConnections, to.MaxSessions, to.MaxSessionsPerPrincipal
	l.MaxSessionExpiry, l.MaxSubscriptions, l.MaxFilterBytes = to.MaxSessionExpiry, to.MaxSubscriptions, to.MaxFilterBytes
	l.MaxInflight, l.MaxInflightV3 = to.MaxInflight, to.MaxInflightV3
	l.MaxQueued, l.MaxQueuedBytes, l.MaxTotalQueued, l.MaxTotalQueuedBytes = to.MaxQueued, to.MaxQueuedBytes, to.MaxTotalQueued, to.MaxTotalQueuedBytes
	l.MaxQueuedMemory, l.MaxNotifications, l.QueueFull = to.MaxQueuedMemory, to.MaxNotifications, to.QueueFull
	l.MaxRetained, l.MaxRetainedBytes = to.MaxRetained, to.MaxRetainedBytes
	l.MaxClientRetained, l.MaxClientRetainedBytes = to.MaxClientRetained, to.MaxClientRetainedBytes
	l.MaxTxnDeliveries, l.MaxDelay = to.MaxTxnDeliveries, to.MaxDelay
	l.MaxTimers, l.MaxTimerBytes, l.MaxClientTimers, l.MaxClientTimerBytes = to.MaxTimers, to.MaxTimerBytes, to.MaxClientTimers, to.MaxClientTimerBytes
}
