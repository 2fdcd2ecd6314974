package consistent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/topic"
)

// Options configures a [Processor]. Only Name must be given.
type Options struct {
	// Name names the processor in metrics and logs, its handlers unless they have names
	// of their own, and its dead-letter topic.
	Name string
	// Share lets several instances share the messages: the group of a shared
	// subscription. Without it each instance gets every message, and the store makes
	// sure that it takes effect once.
	Share string
	// Concurrency is how many messages are processed at once; the default is 256.
	Concurrency int
	// Keep is for how long a message is remembered, so that a duplicate is known as
	// one; the default is 7 days. The server may have a lower maximum.
	Keep time.Duration
	// AcceptLate processes messages whose CloudEvents time is longer ago than Keep.
	// They are dead letters otherwise: nobody can know whether they are duplicates.
	AcceptLate bool
	// Retry is for errors that handlers return.
	Retry Retry
	// DeadLetterTopic gets messages that can't be processed; the default is
	// "dead-letters/" and Name.
	DeadLetterTopic string
	// Source is the CloudEvents source of outputs that have none; the default is the
	// name of their handler.
	Source string
	// Timeout bounds each request to the store, and each publishing; the default is 10 s.
	Timeout time.Duration
	// DrainTimeout is how long Run waits, once its context has ended, for messages that
	// are being processed; the default is 30 s.
	DrainTimeout time.Duration
	// Middleware wraps each attempt to process a message, the first being the outermost.
	Middleware []Middleware
	// Logger gets retries, dead letters and duplicates that contradict each other. By
	// default nothing is logged.
	Logger *slog.Logger
	// Registerer gets the metrics; nil: nobody does.
	Registerer prometheus.Registerer
	// Clock replaces time.Now, for tests.
	Clock func() time.Time
}

// Retry says how often, and with what pauses, a handler's error is tried again.
type Retry struct {
	// Attempts is how often a handler is called in all before the message becomes a
	// dead letter; the default is 5.
	Attempts int
	// First is the pause after the first error, the default is 100 ms. Each pause is
	// twice the one before, up to Longest, the default 30 s, and spread at random by
	// half. Failures of the store and the connection have the same pauses, and no end.
	First, Longest time.Duration
}

// Incoming is a message on its way through a processor, as [Middleware] sees it.
type Incoming struct {
	Handler   string
	Key       string // the business key
	MessageID string
	Message   *Message // as it came; not to be changed
	handler   *handler
}

// Process processes a message.
type Process func(ctx context.Context, in *Incoming) error

// Middleware wraps the processing of messages. It sees every attempt, those for
// duplicates too, so what it does is done at least once.
type Middleware func(next Process) Process

// Processor processes messages by handlers. See [New], [Handle] and [Processor.Run].
type Processor struct {
	conn     Conn
	o        Options
	handlers []*handler
	metrics  *metrics
	counts   map[*handler]handlerMetrics
	lanes    *lanes
	attempt  Process // with the middleware around it

	unregistered []error // what Run is to complain about
	started      atomic.Bool
	loners       atomic.Uint64 // numbers the lanes of messages without key
	fatal        chan error    // gets what ends Run early; buffered
	subscribed   chan struct{} // closed when the server has granted the subscriptions
	draining     chan struct{} // closed when Run ends
	working      context.Context
	confirming   chan struct{} // a slot for each DONE under way
	confirms     sync.WaitGroup
}

// New makes a processor. Errors in the options are Run's.
func New(conn Conn, o Options) *Processor {
	p := &Processor{conn: conn, fatal: make(chan error, 1), subscribed: make(chan struct{}), draining: make(chan struct{}), counts: make(map[*handler]handlerMetrics)}
	p.o = o.withDefaults()
	if err := p.o.check(); err != nil {
		p.unregistered = append(p.unregistered, err)
	}
	var err error
	if p.metrics, err = newMetrics(p.o.Name, p.o.Registerer); err != nil {
		p.unregistered = append(p.unregistered, fmt.Errorf("metrics: %w", err))
	}
	p.lanes = newLanes(p.o.Concurrency, p.fly)
	p.confirming = make(chan struct{}, p.o.Concurrency)
	p.attempt = p.process
	for _, m := range slices.Backward(p.o.Middleware) {
		p.attempt = m(p.attempt)
	}
	return p
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Keep, 7*24*time.Hour)
	def(&o.Retry.First, 100*time.Millisecond)
	def(&o.Retry.Longest, 30*time.Second)
	def(&o.Timeout, 10*time.Second)
	def(&o.DrainTimeout, 30*time.Second)
	if o.Concurrency == 0 {
		o.Concurrency = 256
	}
	if o.Retry.Attempts == 0 {
		o.Retry.Attempts = 5
	}
	if o.DeadLetterTopic == "" {
		o.DeadLetterTopic = "dead-letters/" + o.Name
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return o
}

func (o *Options) check() error {
	switch {
	case o.Name == "":
		return errors.New("Options.Name is missing")
	case !utf8.ValidString(o.Share) || strings.ContainsAny(o.Share, "/+#\x00"):
		return fmt.Errorf("Options.Share %q: a group has no '/', '+', '#' and NUL [MQTT-4.8.2-2]", o.Share)
	case o.Concurrency < 0 || o.Keep < 0 || o.Timeout < 0 || o.DrainTimeout < 0 || o.Retry.Attempts < 0:
		return errors.New("a negative number makes no sense in Options")
	case o.Retry.First < 0 || o.Retry.Longest < o.Retry.First:
		return fmt.Errorf("Options.Retry: pauses from %v to %v", o.Retry.First, o.Retry.Longest)
	}
	return nil
}

// register adds a handler, if it goes with the others.
func (p *Processor) register(h *handler) error {
	if p.started.Load() {
		return errors.New("the processor is running")
	}
	for _, other := range append(slices.Clone(p.handlers), h) {
		switch {
		case other != h && other.name == h.name && (other.state != h.state || overlap(other.filter, h.filter)):
			return fmt.Errorf("there is another handler with the name %q, for %q: name one with HandlerName, unless they take different messages to the same state", h.name, other.filter)
		case topic.Matches(other.filter, []byte(h.deadLetter)):
			return fmt.Errorf("its dead-letter topic %q is matched by the filter %q: dead letters would be processed", h.deadLetter, other.filter)
		case topic.Matches(h.filter, []byte(other.deadLetter)):
			return fmt.Errorf("the filter matches the dead-letter topic %q: dead letters would be processed", other.deadLetter)
		}
	}
	p.handlers = append(p.handlers, h)
	p.counts[h] = p.metrics.of(h.name)
	return nil
}

// overlap tells whether a topic can match both filters.
func overlap(a, b string) bool {
	x, restA, moreA := strings.Cut(a, "/")
	y, restB, moreB := strings.Cut(b, "/")
	switch {
	case x == "#" || y == "#":
		return true
	case x != y && x != "+" && y != "+":
		return false
	case moreA && moreB:
		return overlap(restA, restB)
	}
	return moreA == moreB || restA == "#" || restB == "#"
}

// Run processes messages until ctx ends, and then lets those end that are being
// processed. It returns nil then, or an error: of the registration, of a subscription
// that the server refuses, [ErrUnsupported] if the server lacks the commands. Run can
// be called once, and does not close the connection.
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
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	p.working = working
	if err := p.conn.Subscribe(ctx, p.filters(), p.deliver); err != nil {
		p.drain(stop)
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	close(p.subscribed)
	var err error
	select {
	case <-ctx.Done():
	case err = <-p.fatal:
	}
	p.drain(stop)
	return err
}

// Subscribed is closed once Run has its subscriptions: what is published from then on
// is for this processor.
func (p *Processor) Subscribed() <-chan struct{} { return p.subscribed }

// filters are the subscriptions, each once.
func (p *Processor) filters() []string {
	var filters []string
	for _, h := range p.handlers {
		f := h.filter
		if p.o.Share != "" {
			f = "$share/" + p.o.Share + "/" + f
		}
		if !slices.Contains(filters, f) {
			filters = append(filters, f)
		}
	}
	return filters
}

// drain ends the processing: what waits is dropped, unacknowledged; what is under way
// has until DrainTimeout.
func (p *Processor) drain(stop context.CancelFunc) {
	close(p.draining)
	p.lanes.close()
	timer := time.AfterFunc(p.o.DrainTimeout, stop)
	defer timer.Stop()
	p.lanes.running.Wait()
	p.confirms.Wait()
}

// fail ends Run with err.
func (p *Processor) fail(err error) {
	select {
	case p.fatal <- err:
	default: // it ends already
	}
}

// deliver gets each message, in the goroutine that reads the connection. A message
// that several handlers want is acknowledged when all of them are done with it.
func (p *Processor) deliver(d Delivery) {
	var wanted []*handler
	for _, h := range p.handlers {
		if topic.Matches(h.filter, []byte(d.Topic)) {
			wanted = append(wanted, h)
		}
	}
	if len(wanted) == 0 {
		p.o.Logger.Warn("a message came that no handler wants: perhaps of a subscription from before", "topic", d.Topic)
		d.Ack()
		return
	}
	ack := d.Ack
	if len(wanted) > 1 {
		left := atomic.Int64{}
		left.Store(int64(len(wanted)))
		ack = func() {
			if left.Add(-1) == 0 {
				d.Ack()
			}
		}
	}
	for _, h := range wanted {
		p.lanes.add(p.takeOff(h, &d.ApplicationMessage, ack))
	}
}

// takeOff finds out what a message is and which key it concerns.
func (p *Processor) takeOff(h *handler, m *Message, ack func()) *flight {
	f := &flight{acks: []func(){ack}, Incoming: Incoming{Handler: h.name, Message: m, handler: h}}
	f.refused = guarded(func() (err error) {
		if f.MessageID = identify(m, h.messageID); f.MessageID == "" {
			return ErrNoIdentity
		}
		if f.decoded, err = h.decode(m); err != nil {
			return err
		}
		if f.Key = h.key(m, f.decoded); f.Key == "" {
			return ErrNoKey
		}
		return p.tooOld(m)
	})
	f.lane = storeKey(h, f.Key)
	if f.refused != nil {
		f.lane = "/" + strconv.FormatUint(p.loners.Add(1), 10) // no handler's name is empty
	}
	return f
}

// storeKey is where the state is.
func storeKey(h *handler, key string) string { return h.name + "/" + key }

func (p *Processor) tooOld(m *Message) error {
	t, ok := eventTime(m)
	if age := p.o.Clock().Sub(t); ok && !p.o.AcceptLate && age > p.o.Keep {
		return fmt.Errorf("%w: its CloudEvents time is %v, and messages are remembered for %v", ErrTooOld, t, p.o.Keep)
	}
	return nil
}
