package consistent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/backlog"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/claim"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/decoded"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/keep"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/lanes"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/letters"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/record"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/serverclock"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/states"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/stores"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Incoming is a message on its way through a processor, as [Middleware] sees it.
type Incoming struct {
	Handler   string
	Key       string // the business key
	MessageID string
	Message   *Message // as it came; not to be changed
	// Trace is what the outputs carry of the trace context, unless they have it: traceparent
	// and tracestate, by default those of the message. Middleware may set it before it calls
	// next.
	Trace   UserProperties
	handler *handler
}

// Process processes a message.
type Process func(ctx context.Context, in *Incoming) error

// Middleware wraps the processing of messages. It sees every attempt, those for
// duplicates too, so what it does is done at least once.
type Middleware func(next Process) Process

// Processor processes messages by handlers. See [New], [Handle] and [Processor.Run].
type Processor struct {
	conn     Conn
	o        options
	handlers []*handler
	lanes    *lanes.Lanes[*task]
	states   *states.Cache // of the transactional path
	letters  letters.Box   // the dead letters in the store
	clock    serverclock.Clock
	backlog  backlog.Backlog
	attempt  Process // by the middleware; nil: there is none

	operations   commit.Limit   // of a transaction that messages share
	group        *commit.Group  // of messages of different keys; nil: they share no transactions. Set by Run
	stores       *stores.Stores // of the state-based path. Set by Run
	unregistered []error        // of registrations; Run returns them
	needs        keep.Needs     // set by Run
	remember     time.Duration  // for how long the server is to remember messages; set by Run
	started      atomic.Bool
	keyless      atomic.Uint64           // numbers the lanes of messages without a key
	fail         context.CancelCauseFunc // ends Run with an error; set by Run
	subscribed   chan struct{}           // closed when the server has granted the subscriptions
	draining     chan struct{}           // closed when Run ends
	working      context.Context
}

// maxTogether is how many messages of a key share a transaction at most.
const maxTogether = 64

// New makes a processor. Its name appears in metrics and logs, and is the name of its
// handlers unless they have names of their own ([WithName]). The error is
// [client.ErrInvalidOption] and says what would be right.
func New(conn Conn, name string, opts ...Option) (*Processor, error) {
	o, err := newOptions(name, opts)
	if err != nil {
		return nil, err
	}
	p := &Processor{conn: conn, o: o, subscribed: make(chan struct{}), draining: make(chan struct{})}
	p.lanes = lanes.New(o.concurrency, maxTogether, p.work)
	p.states = states.New(o.stateBytes)
	p.backlog.Full, p.backlog.Over = p.behind, func() {
		p.o.logger.Info("this processor has caught up with half of the messages that the server sends without an acknowledgement", "processor", p.o.name)
	}
	p.clock.Log = p.o.logger.With("processor", p.o.name)
	if len(o.middleware) > 0 {
		p.attempt = func(ctx context.Context, _ *Incoming) error { return p.process(ctx, ctx.Value(taskKey{}).(*task)) }
	}
	for _, m := range slices.Backward(o.middleware) {
		p.attempt = m(p.attempt)
	}
	return p, nil
}

// add registers a handler, or remembers for Run why it can't be.
func (p *Processor) add(h *handler, filter string, err error) error {
	if err == nil {
		err = p.register(h)
	}
	if err != nil {
		err = fmt.Errorf("handler for %q: %w: %w", filter, client.ErrInvalidOption, err)
		p.unregistered = append(p.unregistered, err)
	}
	return err
}

// register adds a handler, if it goes with the others.
func (p *Processor) register(h *handler) error {
	if p.started.Load() {
		return errors.New("the processor is running")
	}
	for _, other := range append(slices.Clone(p.handlers), h) {
		if other != h && other.name == h.name && (other.state != h.state || topic.Overlap(other.filter, h.filter)) {
			return fmt.Errorf("there is another handler with the name %q, for %q: name one of them WithName, unless they take different messages to the same state", h.name, other.filter)
		}
		if err := event.CheckDeadLetters(h.filter, h.deadLetter, other.filter, other.deadLetter); err != nil {
			return err
		}
	}
	p.handlers = append(p.handlers, h)
	return nil
}

// Run processes messages until ctx ends, waits for those that are being processed, and
// returns nil. Otherwise it returns an error: of a registration, of a subscription that
// the server refuses, [ErrUnsupported] if the server lacks the commands, or of handlers that have
// not returned 5 s after [WithDrainTimeout]. Run can be called once, and does not close the connection.
func (p *Processor) Run(ctx context.Context) error {
	if len(p.unregistered) > 0 {
		return errors.Join(p.unregistered...)
	}
	if len(p.handlers) == 0 {
		return errors.New("there is no handler: see Handle")
	}
	if p.started.Swap(true) {
		return errors.New("the processor was run before: make another with New")
	}
	release, err := claim.Of(p.conn)
	if err != nil {
		return err
	}
	defer release()
	if err := p.askKeep(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	p.working = working
	c, together := p.conn.(TogetherConn)
	if together = together && c.TransactsTogether(); together {
		p.group = commit.NewGroup(commit.Options{Context: working, Timeout: p.o.timeout, Transact: c.Transact, Limit: &p.operations, PacketSize: c.MaxPacketSize})
	}
	p.stores = stores.New(stores.Options{Context: working, Timeout: p.o.timeout, Conn: p.conn, Together: together, Limit: &p.operations, PacketSize: p.conn.MaxPacketSize, Confirming: p.o.concurrency})
	receiving, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	p.fail = enough
	err = p.receive(receiving)
	if late := p.drain(stop); late != nil || ctx.Err() != nil {
		return late
	}
	return err
}

// receive subscribes, and makes tasks of the messages that come. It returns why no more
// come.
func (p *Processor) receive(ctx context.Context) error {
	var filters []string
	for _, h := range p.handlers {
		filters = append(filters, h.filter)
	}
	if err := p.conn.Subscribe(ctx, event.Filters(p.o.share, filters)...); err != nil {
		return err
	}
	close(p.subscribed)
	for d, err := range p.conn.Messages(ctx) {
		if err != nil {
			return err
		}
		p.deliver(d)
	}
	return nil
}

// Subscribed is closed once Run has its subscriptions: what is published from then on
// is for this processor.
func (p *Processor) Subscribed() <-chan struct{} { return p.subscribed }

// drain drops the tasks that wait, without acknowledgement, and waits for the tasks that
// run, up to the time of WithDrainTimeout, and then for handlers to see that their context has ended.
func (p *Processor) drain(stop context.CancelFunc) error {
	close(p.draining)
	p.lanes.Close()
	if lanes.Await(func() { p.lanes.Wait(); p.stores.Wait() }, p.o.drainTimeout, stop) {
		return nil
	}
	return fmt.Errorf("handlers have not returned %v after WithDrainTimeout (%v), although their Context.Context has ended: they run on, and their messages come again", lanes.Grace, p.o.drainTimeout)
}

// deliver gets each message, in the goroutine of Run. A message that several handlers
// want is acknowledged when all of them are done with it.
func (p *Processor) deliver(d Delivery) {
	wanted := make([]*handler, 0, 4) // on the stack
	for _, h := range p.handlers {
		if topic.Matches(h.filter, []byte(d.Topic)) {
			wanted = append(wanted, h)
		}
	}
	a := p.backlog.Add(d, max(1, len(wanted)))
	if len(wanted) == 0 {
		p.lanes.Add(p.refusedTask(&a.Deliveries()[0].Message, ErrNoHandler), a)
	}
	for _, h := range wanted {
		p.lanes.Add(p.newTask(h, &a.Deliveries()[0].Message), a)
	}
}

// behind says that the processor holds up the server.
func (p *Processor) behind() {
	p.o.metrics.Count(p.o.name, "", CountBackpressure)
	p.o.logger.Warn("this processor has as many messages as the server sends without an acknowledgement; others wait at the server, which refuses publishes to the processor's topics when its queue is full (0x97)",
		"processor", p.o.name, "messages", backlog.Most)
}

// newPause is before the second attempt.
func (p *Processor) newPause() lanes.Pause {
	return lanes.Pause{Next: p.o.minBackoff, Longest: p.o.maxBackoff}
}

// task is a message that a handler is to process, from its arrival to its acknowledgement.
type task struct {
	lanes.Place
	Incoming
	decoded  any
	digest   record.Digest // of the payload
	state    decoded.Value // of the state at hand, on the state-based path
	handled  bool          // the handler has seen decoded
	refused  error         // the message becomes a dead letter, because of this
	calls    int           // of the handler that have failed
	pause    lanes.Pause   // before the next attempt
	kept     bool          // the dead letter is in the store, or cannot be
	together bool          // it may share a transaction with others of its key
	alone    bool          // … but may not any more
	apart    bool          // its transaction has no messages of other keys, on either path
	mustLoad bool          // the next attempt begins with LOAD
}

// Same implements lanes.Task. A message with another payload is another one, although it has
// the same ID.
func (f *task) Same(other *task) bool {
	return f.MessageID == other.MessageID && f.digest == other.digest
}

// newTask makes the task of a message for one of its handlers: it finds out the message's
// identity, decodes it, and finds out its key.
func (p *Processor) newTask(h *handler, m *Message) *task {
	f := &task{pause: p.newPause(), digest: record.DigestOf(m.Payload),
		together: len(p.o.middleware) == 0, Incoming: Incoming{Handler: h.name, Message: m, handler: h}}
	f.refused = guarded(func() (err error) {
		if f.MessageID, err = event.Identity(m, h.messageID); err != nil {
			return err
		}
		if f.decoded, err = h.decode(m); err != nil {
			return err
		}
		if f.Key = h.key(m, f.decoded); f.Key == "" {
			return ErrNoKey
		}
		return event.CheckKey(storeKey(h, f.Key))
	})
	if f.refused != nil {
		f.Lane = p.ownLane()
		return f
	}
	f.Lane = storeKey(h, f.Key)
	f.alone = p.tooOld(m) != nil // it matters at once whether it is a duplicate
	return f
}

// storeKey is where the state of the task is, which has a key: in its lane are the messages of
// that state.
func (f *task) storeKey() string { return f.Lane }

// refusedTask makes the task of a message that becomes a dead letter of the processor, and
// not of one of its handlers.
func (p *Processor) refusedTask(m *Message, why error) *task {
	h := &handler{name: p.o.name, qualified: p.o.qualified(p.o.name), deadLetter: p.o.deadLetter}
	return &task{pause: p.newPause(), digest: record.DigestOf(m.Payload), refused: why, Place: lanes.Place{Lane: p.ownLane()},
		Incoming: Incoming{Handler: h.name, MessageID: event.ID(m, nil), Message: m, handler: h}}
}

// ownLane makes the key of a lane for one message. No key of a state begins like it.
func (p *Processor) ownLane() string { return "//" + strconv.FormatUint(p.keyless.Add(1), 10) }

// storeKey is where the state is.
func storeKey(h *handler, key string) string { return h.qualified + "/" + key }

// tooOld tells why a new message can't be processed: a duplicate of it might have been
// forgotten, or be forgotten before it comes.
func (p *Processor) tooOld(m *Message) error {
	if p.o.acceptLate {
		return nil
	}
	return event.CheckAge(m, p.now(), p.o.keep, p.o.skew)
}

// now is the time, corrected if the connection knows that this machine's clock is ahead.
func (p *Processor) now() time.Time {
	if p.o.now != nil {
		return p.o.now()
	}
	return p.clock.Now(p.conn.ClockAhead())
}
