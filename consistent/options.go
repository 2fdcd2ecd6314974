package consistent

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/internal/quietlog"
)

// Option configures a [Processor]: an argument of [New].
type Option interface{ applyProcessor(*options) }

// HandlerOption configures one handler: an argument of [Handle].
type HandlerOption interface{ applyHandler(*handlerOptions) }

// DeadLetterOption is an option of a processor, or of one handler: see [WithDeadLetterTopic].
type DeadLetterOption interface {
	Option
	HandlerOption
}

const (
	defaultConcurrency  = 256
	defaultKeep         = 7 * 24 * time.Hour
	defaultAttempts     = 5
	defaultMinBackoff   = 100 * time.Millisecond
	defaultMaxBackoff   = 30 * time.Second
	defaultTimeout      = 10 * time.Second
	defaultDrainTimeout = 30 * time.Second
	defaultSkew         = 5 * time.Minute

	defaultStateBytes   = 64 << 20
	defaultLetters      = 10_000
	defaultLetterBytes  = 64 << 20
	defaultLetterExpiry = 30 * 24 * time.Hour

	logBurst = 20 // lines a second with the same message
)

type options struct {
	name                   string
	namespace              string
	share                  string
	concurrency            int
	replay                 bool
	stateBytes             int64
	keep                   time.Duration
	skew                   time.Duration
	acceptLate             bool
	attempts               int
	minBackoff, maxBackoff time.Duration
	deadLetter             string
	letters                int
	letterBytes            int64
	letterExpiry           time.Duration
	source                 string
	timeout                time.Duration
	drainTimeout           time.Duration
	middleware             []Middleware
	logger                 *slog.Logger
	metrics                Metrics
	now                    func() time.Time // nil: the machine's clock
	noNow                  bool             // WithNow(nil) was given
}

type optionFunc func(*options)

func (f optionFunc) applyProcessor(o *options) { f(o) }

// WithShare lets several instances share the messages: group names the group of a shared
// subscription. Without it, or with "", each instance gets every message, and the store makes sure
// that it takes effect once.
func WithShare(group string) Option { return optionFunc(func(o *options) { o.share = group }) }

// WithConcurrency sets how many messages are processed at once, at least 1; the default is 256.
func WithConcurrency(messages int) Option {
	return optionFunc(func(o *options) { o.concurrency = messages })
}

// WithStatesAtHand bounds the states that the processor keeps at hand, in bytes with their keys and
// about 200 bytes for each; the default is 64 MiB. A message of a key whose state is at hand takes
// one request less ([CountLoaded]); [CountEvicted] counts states that had to make room. 0: none is
// kept, and messages of a key do not share transactions.
func WithStatesAtHand(bytes int64) Option {
	return optionFunc(func(o *options) { o.stateBytes = bytes })
}

// WithNamespace puts name and a slash, behind a slash, before the store's keys of all handlers, so
// that processors of several applications can use the same names of handlers on one server. By
// default there is none, and the names are common to all processors. The default of
// [WithDeadLetterTopic] then is "dead-letters/", the namespace, a slash and the processor's name,
// and that of [WithSource] the namespace, a slash and the handler's name. Another namespace means
// other states, and no memory of messages.
func WithNamespace(name string) Option { return optionFunc(func(o *options) { o.namespace = name }) }

// WithMaxSkew sets how far ahead of this machine's clock a message's CloudEvents time may be; the
// default is 5 minutes. A message that is further ahead is a dead letter, unless [WithLateMessages]
// is given. Messages are remembered that much longer than [WithKeep] says, so that a sender whose
// clock is ahead can't make an old duplicate look young.
func WithMaxSkew(d time.Duration) Option { return optionFunc(func(o *options) { o.skew = d }) }

// WithKeep sets for how long a message is remembered, so that a duplicate is known as one; the
// default is 7 days. If the server's maximum is shorter, [Processor.Run] returns [ErrKeepTooShort].
func WithKeep(d time.Duration) Option { return optionFunc(func(o *options) { o.keep = d }) }

// WithLateMessages processes messages whose CloudEvents time is longer ago than [WithKeep] says.
// Without it they are dead letters, because it is not known whether they are duplicates.
func WithLateMessages() Option { return optionFunc(func(o *options) { o.acceptLate = true }) }

// WithAttempts sets how often a handler that returns an error is called in all, before the message
// becomes a dead letter: at least 1; the default is 5.
func WithAttempts(calls int) Option { return optionFunc(func(o *options) { o.attempts = calls }) }

// WithBackoff bounds the pause between two attempts: it starts near minimum, doubles with each
// failure up to maximum, and is spread at random by half. The defaults are 100 ms and 30 s.
// Failures of the store and the connection have the same pauses, and are tried again without limit.
func WithBackoff(minimum, maximum time.Duration) Option {
	return optionFunc(func(o *options) { o.minBackoff, o.maxBackoff = minimum, maximum })
}

type deadLetterTopic string

func (t deadLetterTopic) applyProcessor(o *options)      { o.deadLetter = string(t) }
func (t deadLetterTopic) applyHandler(o *handlerOptions) { o.deadLetter = string(t) }

// WithDeadLetterTopic sets where messages go that can't be processed. The default is
// "dead-letters/" and the processor's name. Given to [Handle], it replaces the processor's topic
// for one handler.
func WithDeadLetterTopic(topic string) DeadLetterOption { return deadLetterTopic(topic) }

// WithKeptDeadLetters bounds the dead letters that are kept in the store, where holdfast
// dead-letters and package deadletter find them: how many letters, how many bytes they have
// together, and after what time each of them expires. The defaults are 10,000, 64 MiB and 30 days.
// A letter for which there is no room is published only, counted ([CountUnkept]) and logged. With 0
// letters none is kept. Each instance counts for itself.
//
// The processor must be allowed to read and write the keys dead-letters/NAME/…, with the namespace
// before the processor's name if it has one.
func WithKeptDeadLetters(letters int, bytes int64, expiry time.Duration) Option {
	return optionFunc(func(o *options) { o.letters, o.letterBytes, o.letterExpiry = letters, bytes, expiry })
}

// WithSource sets the CloudEvents source of outputs that have none; the default is the name of
// their handler.
func WithSource(source string) Option { return optionFunc(func(o *options) { o.source = source }) }

// WithTimeout bounds each request to the store, and each publishing; the default is 10 s.
func WithTimeout(d time.Duration) Option { return optionFunc(func(o *options) { o.timeout = d }) }

// WithDrainTimeout sets how long [Processor.Run] waits, once its context has ended, for messages
// that are being processed; the default is 30 s.
func WithDrainTimeout(d time.Duration) Option {
	return optionFunc(func(o *options) { o.drainTimeout = d })
}

// WithMiddleware wraps each attempt to process a message, the first being the outermost.
func WithMiddleware(m ...Middleware) Option {
	return optionFunc(func(o *options) { o.middleware = m })
}

// WithLogger receives retries, dead letters and duplicates that contradict each other. The default
// is [slog.Default], with at most 20 lines a second that have the same message, and a count of the
// others; give slog.New(slog.DiscardHandler) to log nothing.
func WithLogger(l *slog.Logger) Option { return optionFunc(func(o *options) { o.logger = l }) }

// WithMetrics counts and measures into m, for example one of package consistentprom. By default
// nothing is counted.
func WithMetrics(m Metrics) Option { return optionFunc(func(o *options) { o.metrics = m }) }

// WithNow replaces the machine's clock, for tests: [Context.Now] and the age of messages. Without
// it, a clock of which the server has said that it is ahead is corrected.
func WithNow(now func() time.Time) Option {
	return optionFunc(func(o *options) { o.now, o.noNow = now, now == nil })
}

func newOptions(name string, opts []Option) (options, error) {
	o := options{
		name:         name,
		concurrency:  defaultConcurrency,
		stateBytes:   defaultStateBytes,
		keep:         defaultKeep,
		attempts:     defaultAttempts,
		minBackoff:   defaultMinBackoff,
		maxBackoff:   defaultMaxBackoff,
		skew:         defaultSkew,
		letters:      defaultLetters,
		letterBytes:  defaultLetterBytes,
		letterExpiry: defaultLetterExpiry,
		timeout:      defaultTimeout,
		drainTimeout: defaultDrainTimeout,
		logger:       slog.New(quietlog.New(slog.Default().Handler(), quietlog.Options{Burst: logBurst})),
		metrics:      noMetrics{},
	}
	for _, opt := range opts {
		opt.applyProcessor(&o)
	}
	if o.deadLetter == "" {
		o.deadLetter = "dead-letters/" + strings.TrimPrefix(o.qualified(name), "/")
	}
	return o, o.check()
}

// qualified puts the namespace before a name. No name is empty, so no key of a state without a
// namespace looks like one with it.
func (o *options) qualified(name string) string {
	if o.namespace == "" {
		return name
	}
	return "/" + o.namespace + "/" + name
}

func (o *options) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", client.ErrInvalidOption, fmt.Sprintf(format, args...))
	}
	switch {
	case !event.ValidName(o.name):
		return bad("processor name %q: %s", o.name, event.NameRule)
	case !utf8.ValidString(o.share) || strings.ContainsAny(o.share, "/+#\x00"):
		return bad("WithShare(%q): a group has no '/', '+', '#' and NUL [MQTT-4.8.2-2]", o.share)
	case o.concurrency < 1:
		return bad("WithConcurrency(%d): it must be at least 1", o.concurrency)
	case o.namespace != "" && !event.ValidName(o.namespace):
		return bad("WithNamespace(%q): %s", o.namespace, event.NameRule)
	case o.skew < 0:
		return bad("WithMaxSkew(%v): it must not be negative", o.skew)
	case o.stateBytes < 0:
		return bad("WithStatesAtHand(%d): it must not be negative", o.stateBytes)
	case o.keep <= 0:
		return bad("WithKeep(%v): it must be positive", o.keep)
	case o.attempts < 1:
		return bad("WithAttempts(%d): it must be at least 1", o.attempts)
	case o.minBackoff <= 0 || o.maxBackoff < o.minBackoff:
		return bad("WithBackoff(%v, %v): the first must be positive and the second no smaller", o.minBackoff, o.maxBackoff)
	case !event.ValidTopic(o.deadLetter):
		return bad("WithDeadLetterTopic(%q): %s", o.deadLetter, event.TopicRule)
	case o.letters < 0 || o.letters > 0 && (o.letterBytes <= 0 || o.letterExpiry <= 0):
		return bad("WithKeptDeadLetters(%d, %d, %v): the first must not be negative, and the others must be positive unless it is 0", o.letters, o.letterBytes, o.letterExpiry)
	case o.timeout <= 0:
		return bad("WithTimeout(%v): it must be positive", o.timeout)
	case o.drainTimeout < 0:
		return bad("WithDrainTimeout(%v): it must not be negative", o.drainTimeout)
	case o.logger == nil:
		return bad("WithLogger(nil): leave the option out to use slog.Default, or give a logger with slog.DiscardHandler")
	case o.metrics == nil:
		return bad("WithMetrics(nil): leave the option out to count nothing")
	case o.noNow:
		return bad("WithNow(nil): leave the option out to use time.Now")
	}
	for _, m := range o.middleware {
		if m == nil {
			return bad("WithMiddleware: one of them is nil")
		}
	}
	return nil
}
