package client

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"holdfast/hlc"
)

const (
	defaultTimeout       = 10 * time.Second
	defaultKeepAlive     = 20 * time.Second
	defaultMinBackoff    = 50 * time.Millisecond
	defaultMaxBackoff    = 10 * time.Second
	defaultWatchQueue    = 64
	defaultSessionExpiry = 24 * time.Hour
)

// Option configures a [Client].
type Option interface{ applyClient(*config) }

type optionFunc func(*config)

func (f optionFunc) applyClient(c *config) { f(c) }

type config struct {
	clientID           string
	username           string
	password           []byte
	tls                *tls.Config
	dial               func(context.Context) (net.Conn, error)
	timeout            time.Duration
	keepAlive          time.Duration
	minBackoff         time.Duration
	maxBackoff         time.Duration
	maxPacketSizeBytes uint32
	retryWrites        bool
	sessionExpiry      time.Duration
	randomID           bool // the client ID was made up, so nobody else will ever use it
	clock              *hlc.Clock
	logger             *slog.Logger
}

// WithClientID sets the MQTT client ID; two clients must not share one, each
// would throw the other out. It must not be empty or contain '/', '+', '#'.
// The default is "holdfast-" and 16 random hexadecimal digits.
func WithClientID(id string) Option {
	return optionFunc(func(c *config) { c.clientID = id })
}

// WithCredentials sets the user name and password of the connection.
func WithCredentials(username string, password []byte) Option {
	return optionFunc(func(c *config) { c.username, c.password = username, password })
}

// WithTLS sets the TLS configuration for the schemes mqtts and wss, and makes
// an address without a scheme mean mqtts. An empty ServerName is filled in.
func WithTLS(t *tls.Config) Option {
	return optionFunc(func(c *config) { c.tls = t })
}

// WithDialer replaces the way a network connection is made; the address given
// to [Dial] or [New] is then only a name. dial is called once per attempt and
// its context bounds the attempt. It must return a connection on which MQTT
// can be spoken at once.
func WithDialer(dial func(ctx context.Context) (net.Conn, error)) Option {
	return optionFunc(func(c *config) { c.dial = dial })
}

// WithTimeout bounds operations whose context has no deadline, and each
// attempt to connect. The default is 10 s.
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) { c.timeout = d })
}

// WithKeepAlive sets the MQTT Keep Alive, in whole seconds from 1 s to 65,535 s.
// A dead connection is noticed within twice that time. The default is 20 s.
func WithKeepAlive(d time.Duration) Option {
	return optionFunc(func(c *config) { c.keepAlive = d })
}

// WithBackoff bounds the pause between two attempts to connect: it starts near
// min, doubles with each failure up to max, and is spread at random by half.
// The defaults are 50 ms and 10 s.
func WithBackoff(minimum, maximum time.Duration) Option {
	return optionFunc(func(c *config) { c.minBackoff, c.maxBackoff = minimum, maximum })
}

// WithMaxPacketSize announces the largest MQTT packet, in bytes, that the
// server may send. Larger values then cannot be read; a Get of one times out,
// because the server must drop the answer [MQTT-3.1.2-24]. The default, 0, is
// no limit.
func WithMaxPacketSize(bytes uint32) Option {
	return optionFunc(func(c *config) { c.maxPacketSizeBytes = bytes })
}

// WithClock shares a hybrid logical clock with other clients of the process.
// By default each client has its own, whose node ID is the client ID.
func WithClock(clock *hlc.Clock) Option {
	return optionFunc(func(c *config) { c.clock = clock })
}

// WithLogger receives one line when the connection is made or lost. By default
// nothing is logged.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) { c.logger = l })
}

func newConfig(opts []Option) (*config, error) {
	c := &config{
		timeout:       defaultTimeout,
		keepAlive:     defaultKeepAlive,
		minBackoff:    defaultMinBackoff,
		maxBackoff:    defaultMaxBackoff,
		sessionExpiry: defaultSessionExpiry,
		logger:        slog.New(slog.DiscardHandler),
	}
	for _, o := range opts {
		o.applyClient(c)
	}
	if c.clientID == "" {
		c.clientID, c.randomID = randomClientID(), true
	}
	if c.clock == nil {
		c.clock = hlc.NewClock(nodeID(c.clientID))
	}
	return c, c.check()
}

func (c *config) check() error {
	switch {
	case !utf8.ValidString(c.clientID) || strings.ContainsAny(c.clientID, "/+#\x00"):
		return fmt.Errorf("%w: client ID %q: it becomes a level of the response topic, so it must be UTF-8 without '/', '+', '#' and NUL", ErrInvalidOption, c.clientID)
	case c.timeout <= 0:
		return fmt.Errorf("%w: timeout %v: it must be positive", ErrInvalidOption, c.timeout)
	case c.keepAlive < time.Second || c.keepAlive > 65535*time.Second:
		return fmt.Errorf("%w: keep-alive %v: it must be from 1s to 65535s", ErrInvalidOption, c.keepAlive)
	case c.sessionExpiry < time.Second || c.sessionExpiry > (1<<32-2)*time.Second:
		return fmt.Errorf("%w: session expiry %v: it must be from 1s to %ds", ErrInvalidOption, c.sessionExpiry, int64(1<<32-2))
	case c.minBackoff <= 0 || c.maxBackoff < c.minBackoff:
		return fmt.Errorf("%w: backoff from %v to %v", ErrInvalidOption, c.minBackoff, c.maxBackoff)
	}
	return nil
}

func randomClientID() string {
	var b [8]byte
	rand.Read(b[:])
	return "holdfast-" + hex.EncodeToString(b[:])
}

// nodeID makes a clock's node ID of a client ID: a colon would end it
// (protocol, section 4).
func nodeID(clientID string) string { return strings.ReplaceAll(clientID, ":", "-") }

// SetOption configures one [Client.Set].
type SetOption interface{ applySet(*setArgs) }

// DelOption configures one [Client.Del] or [Client.VDel].
type DelOption interface{ applyDel(*delArgs) }

// StoreOption configures one [Client.Store].
type StoreOption interface{ applyStore(*storeArgs) }

// DoneOption configures one [Client.Done].
type DoneOption interface{ applyDone(*doneArgs) }

// WriteOption configures any one write of a key.
type WriteOption interface {
	SetOption
	DelOption
	StoreOption
}

// writeArgs is what all writes have in common.
type writeArgs struct {
	token *hlc.Timestamp
	retry bool
}

type setArgs struct {
	writeArgs
	nx, nex  bool
	compare  []byte // NEX's operand; nil: none
	expiry   time.Duration
	expires  bool
	version  hlc.Timestamp
	versions int // how many of IfVersion and IfAbsent were given
	absent   bool
}

type delArgs struct{ writeArgs }

type storeArgs struct {
	writeArgs
	context []byte // nil: none
	keep    time.Duration
	keeps   bool
}

type doneArgs struct{ writeArgs }

type storeFunc func(*storeArgs)

func (f storeFunc) applyStore(a *storeArgs) { f(a) }

type setFunc func(*setArgs)

func (f setFunc) applySet(a *setArgs) { f(a) }

type writeFunc func(*writeArgs)

func (f writeFunc) applySet(a *setArgs)     { f(&a.writeArgs) }
func (f writeFunc) applyDel(a *delArgs)     { f(&a.writeArgs) }
func (f writeFunc) applyStore(a *storeArgs) { f(&a.writeArgs) }

// NX applies the Set only if the key does not exist.
func NX() SetOption { return setFunc(func(a *setArgs) { a.nx = true }) }

// NEX applies the Set only if the key does not exist or already has the value
// that is being set: the way to renew one's own lock.
func NEX() SetOption { return setFunc(func(a *setArgs) { a.nex = true }) }

// NEXCompare applies the Set only if the key does not exist or its value
// equals old: compare-and-set by value.
func NEXCompare(old []byte) SetOption {
	return setFunc(func(a *setArgs) { a.nex, a.compare = true, append([]byte{}, old...) })
}

// Expiry lets the key disappear after d, which must be positive and is rounded
// up to whole milliseconds. A Set without it removes any expiry the key had.
func Expiry(d time.Duration) SetOption {
	return setFunc(func(a *setArgs) { a.expiry, a.expires = d, true })
}

// IfVersion applies the Set only if the key exists with exactly this version:
// compare-and-set that sees every change in between. The zero version, which
// is what a Get that found nothing returns, means that the key must not exist.
// An extension of Holdfast.
func IfVersion(v hlc.Timestamp) SetOption {
	return setFunc(func(a *setArgs) { a.version = v; a.versions++ })
}

// IfAbsent applies the Set only if the key does not exist, like [NX], but can
// take the place of [IfVersion] in the first step of a chain of versions. An
// extension of Holdfast.
func IfAbsent() SetOption {
	return setFunc(func(a *setArgs) { a.absent = true; a.versions++ })
}

// Fencing sends a fencing token with a write (protocol, section 5): the
// version under which the writer got its lock. A key that was ever set with a
// token refuses writes with a lower one ([ErrTokenTooLow]) or none
// ([ErrTokenRequired]).
func Fencing(token hlc.Timestamp) WriteOption {
	return writeFunc(func(a *writeArgs) { a.token = &token })
}

// Captured has a [Client.Store] remember this with the message, for [Client.Load]
// to give back to a duplicate: what the first processing took from outside, such as
// the time. Nothing is kept of it after [Client.Done].
func Captured(context []byte) StoreOption {
	return storeFunc(func(a *storeArgs) { a.context = append([]byte{}, context...) })
}

// Keep sets for how long a [Client.Store] remembers its message, which must be
// positive and is rounded up to whole milliseconds. The server has a maximum, and
// its own opinion for a Store without it (7 days unless it is told otherwise).
func Keep(d time.Duration) StoreOption {
	return storeFunc(func(a *storeArgs) { a.keep, a.keeps = d, true })
}

type retryWrites struct{}

func (retryWrites) applyClient(c *config)   { c.retryWrites = true }
func (retryWrites) applySet(a *setArgs)     { a.retry = true }
func (retryWrites) applyDel(a *delArgs)     { a.retry = true }
func (retryWrites) applyStore(a *storeArgs) { a.retry = true }
func (retryWrites) applyDone(a *doneArgs)   { a.retry = true }

// RetryWrites sends a write again, until its context ends, when the connection
// broke before the answer came. It may then take effect twice, and other
// clients' writes may lie between: a plain Set can overwrite what somebody
// else wrote after the first time, and a conditional one can report "not
// applied" although it was this very write, the first time, that changed the
// key. A [Client.Store] or [Client.Done] can do no harm: the store remembers the
// first time. Give it for one write or, to [Dial] and [New], for all.
func RetryWrites() interface {
	Option
	WriteOption
	DoneOption
} {
	return retryWrites{}
}

// WatchOption configures one [Client.Watch].
type WatchOption interface{ applyWatch(*watchArgs) }

type watchArgs struct{ queue int }

type watchFunc func(*watchArgs)

func (f watchFunc) applyWatch(a *watchArgs) { f(a) }

// Queue sets how many events wait for a slow consumer of this watch before
// they are replaced by the newest one. From 1; the default is 64.
func Queue(events int) WatchOption {
	return watchFunc(func(a *watchArgs) { a.queue = events })
}
