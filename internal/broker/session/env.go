package session

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/stats"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
)

// Env is what the sessions of a broker share.
type Env struct {
	Journal  *journal.Journal
	Memory   *memory.Pool
	Accounts *message.Accounts
	limits.InForce
	Counters                     stats.Counters
	Log                          *slog.Logger
	Gate                         *transport.Gate
	WallMs                       func() int64 // the machine's clock, ms since the Unix epoch
	start                        time.Time
	Epoch                        int64 // what to add to the broker's clock to get the wall clock, at the start, in ms
	Payloads                     *queue.Payloads
	Pages                        queue.Reader
	routedCharges, directCharges queue.Charges

	LastSID   atomic.Uint64 // number given last to a session, group, will or replay
	Rejecting atomic.Int64  // sessions whose clients asked that publishes be refused when their queue is full

	deferredMu     lockrank.Mutex[lockrank.DeferredOutput]
	deferredOutput *Turn // guarded by deferredMu

	// What the broker does for its sessions:
	Background    func(do func(t *Turn)) bool // does something on a goroutine of its own; false: the broker ends
	EndOverflowed func(t *Turn, s *Session)   // ends a session whose queue passed its bound
	ResumeFeed    func(t *Turn, s *Session)   // sends from what isn't in the session's queue in memory
}

// NewEnv is what sessions share, as far as the broker is configured.
func NewEnv(j *journal.Journal, pool *memory.Pool, l limits.Limits, log *slog.Logger, wallMs func() int64) *Env {
	e := &Env{
		Journal: j, Memory: pool, Accounts: message.NewAccounts(pool), Log: log, WallMs: wallMs,
		start: time.Now().Add(-time.Millisecond), Payloads: queue.NewPayloads(pool), deferredOutput: new(Turn),
	}
	e.Set(l)
	e.Epoch = wallMs() - e.Now()
	e.Gate = transport.NewGate()
	e.Pages = queue.Reader{Journal: j, Wall: e.Epoch}
	e.routedCharges = queue.Charges{Stats: &e.Counters, Memory: pool, Accounts: e.Accounts, Kind: memory.Queues}
	e.directCharges = queue.Charges{Stats: &e.Counters, Memory: pool, Accounts: e.Accounts, Kind: memory.Replies}
	e.deferredOutput.env, e.deferredOutput.MustNotBlock = e, true
	return e
}

// Now is the broker's clock: milliseconds since it started, from 1 on, as 0 stands for
// no time; never stepping back.
func (e *Env) Now() int64 { return int64(time.Since(e.start) / time.Millisecond) }

// SinceStart is the same clock for what needs a Duration.
func (e *Env) SinceStart() time.Duration { return time.Since(e.start) }

// Wall is what to add to the broker's clock to get the wall clock, in ms. It stays what it
// was at the start: the expiry of a message that was published in this run must not move
// when the wall clock is stepped, wherever the message is meanwhile.
func (e *Env) Wall() int64 { return e.Epoch }

// WaitDurable blocks until the journal's batch is durable. It returns false if it is not known to
// be, because the broker ends: nothing may be acknowledged then. It is for goroutines that may wait
// for the disk (readers, replays, operators' requests), and not for the journal's callbacks.
func (e *Env) WaitDurable(seq journal.Seq) (durable bool) {
	done := make(signal)
	if !e.Journal.Await(seq, done) {
		return true
	}
	select {
	case <-done:
		return true
	case <-e.Journal.Over():
		return false
	}
}

// signal is a journal waiter for one goroutine that blocks.
type signal chan struct{}

func (s signal) Durable(journal.Seq) { close(s) }
