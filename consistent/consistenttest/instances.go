package consistenttest

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent"
)

// Instance is a processor of a [Test], as a process of its own would be.
type Instance struct {
	conn   *Conn
	cancel context.CancelFunc
	ended  chan struct{} // closed when the processor has ended
	err    error         // of Run; set before ended is closed

	mu    sync.Mutex
	crash bool // under mu: at the next commit
	dead  bool // under mu: it was killed, or has crashed
}

// Start runs another instance of the test's processor, which may have other handlers: those of
// another version of the program. All instances work on the same states. instance names its
// session: an instance that is started under the name of one that was killed gets what that one
// had not acknowledged. With [consistent.WithShare] instances share the messages; without it
// each gets all of them, and the store makes sure that they take effect once.
func (test *Test) Start(instance string, register func(*consistent.Processor), opts ...consistent.Option) *Instance {
	test.t.Helper()
	conn := test.Broker.Connect(instance)
	return test.start(conn, nil, register, opts)
}

// start runs a processor on a connection until the test ends; through, if it is not nil, stands
// before the connection.
func (test *Test) start(conn *Conn, through consistent.Conn, register func(*consistent.Processor), opts []consistent.Option) *Instance {
	test.t.Helper()
	in := &Instance{conn: conn, ended: make(chan struct{})}
	if through == nil {
		through = &mortal{conn, in}
	}
	opts = slices.Concat([]consistent.Option{consistent.WithLogger(slog.New(slog.DiscardHandler)),
		consistent.WithBackoff(time.Millisecond, 10*time.Millisecond), consistent.WithNow(test.Broker.Now)}, opts)
	p, err := consistent.New(through, test.name, opts...)
	if err != nil {
		test.t.Fatal(err)
	}
	register(p)
	ctx, cancel := context.WithCancel(context.Background())
	in.cancel = cancel
	go func() {
		defer close(in.ended)
		in.err = p.Run(ctx)
	}()
	test.t.Cleanup(func() {
		cancel()
		<-in.ended
		_ = conn.Close()
		if in.err != nil && !in.isDead() {
			test.t.Errorf("the processor: %v", in.err)
		}
	})
	select {
	case <-p.Subscribed():
	case <-in.ended:
		in.die() // so that the reason is not said twice
		test.t.Fatalf("the processor does not run: %v", in.err)
	}
	return in
}

// Instance returns the instance that [New] has started.
func (test *Test) Instance() *Instance { return test.first }

// Stop ends an instance as a program does that gets SIGTERM: what it is processing is done
// first. Its session stays.
func (in *Instance) Stop() {
	in.cancel()
	<-in.ended
	_ = in.conn.Close()
}

// Kill ends an instance as a crash does: its requests fail from now on, and what it has not
// acknowledged is delivered again. It returns when its handlers have returned.
func (in *Instance) Kill() {
	in.die()
	in.cancel()
	<-in.ended
}

// CrashAtCommit has an instance crash right behind its next commit: before the outputs are
// published, if that is another step, and before the message is acknowledged. [Instance.Ended]
// tells when it has.
func (in *Instance) CrashAtCommit() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.crash = true
}

// Ended is closed when the instance has ended.
func (in *Instance) Ended() <-chan struct{} { return in.ended }

func (in *Instance) isDead() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.dead
}

// die breaks the connection.
func (in *Instance) die() {
	in.mu.Lock()
	in.dead = true
	in.mu.Unlock()
	_ = in.conn.Close()
}

// mortal is the connection of an instance that can crash at a commit. Each request that commits
// passes here.
type mortal struct {
	*Conn
	in *Instance
}

// Store implements consistent.Conn.
func (m *mortal) Store(ctx context.Context, r consistent.StoreRequest) (client.StoreResult, error) {
	result, err := m.Conn.Store(ctx, r)
	if err == nil && result.Outcome == client.Stored && m.crashes() {
		return client.StoreResult{}, client.ErrClosed
	}
	return result, err
}

// Transact implements consistent.Conn.
func (m *mortal) Transact(ctx context.Context, r consistent.TxnRequest) (consistent.TxnResult, error) {
	result, err := m.Conn.Transact(ctx, r)
	if err == nil && result.Outcome == txn.Committed && commits(&r) && m.crashes() {
		return consistent.TxnResult{}, client.ErrClosed
	}
	return result, err
}

// commits tells whether a request changes a state, and does not only confirm messages.
func commits(r *consistent.TxnRequest) bool {
	return len(r.Done) == 0 || slices.ContainsFunc(r.Also, func(r consistent.TxnRequest) bool { return len(r.Done) == 0 })
}

// crashes has the instance crash, if it is to.
func (m *mortal) crashes() bool {
	m.in.mu.Lock()
	crash := m.in.crash
	m.in.mu.Unlock()
	if crash {
		m.in.die()
		m.in.cancel()
	}
	return crash
}

// Now is the broker's time: of the expiry of keys, of how long messages are remembered, and of
// the processors of a [Test]. It stands still unless [Broker.Advance] moves it.
func (b *Broker) Now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.store.now
}

// Advance moves the broker's time by d: keys whose time is over are gone, messages are forgotten
// that were remembered until then, and timers are delivered that are due by then, in the order
// of their times. [Test.Send] without messages waits until those are processed.
func (b *Broker) Advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.store.now = b.store.now.Add(d)
	b.ring()
}

// RememberAtMost bounds for how long the broker remembers messages, as --max-remember does at a
// server. The default is 10 years.
func (b *Broker) RememberAtMost(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.store.maxKeep = d
}

// ClockAhead gives an instance a clock that is ahead of the broker's, or behind it with a
// negative duration.
func (test *Test) ClockAhead(d time.Duration) consistent.Option {
	return consistent.WithNow(func() time.Time { return test.Broker.Now().Add(d) })
}

// SentAt gives a message a CloudEvents time.
func SentAt(at time.Time, m consistent.Message) consistent.Message {
	m.UserProperties = append(slices.Clip(m.UserProperties), consistent.UserProperty{Name: "time", Value: at.UTC().Format(time.RFC3339Nano)})
	return m
}
