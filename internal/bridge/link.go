package bridge

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/secrets"
)

// Options are what a link needs of the server.
type Options struct {
	Dial           func(context.Context) (net.Conn, error) // connects to this broker as the bridge's client; needed
	Self           string                                  // this broker's name in ViaProperty; another broker must not have it; needed
	MaxPacket      int                                     // bytes of a packet that this broker takes; needed
	ReceiveMaximum uint16                                  // messages that this broker takes before it acknowledges the first; needed
	Limits         Limits                                  // of this broker
	Reserved       func(name []byte) bool                  // topics here to which a bridge publishes nothing; needed
	// Own says whether a client of this ID has connected here since then, from that address
	// if it is one of TCP; needed.
	Own func(clientID string, from net.Addr, since time.Time) bool
	// Listens says whether a connection between these addresses leads to a listener of this server. It
	// may not know that, and says false then; needed.
	Listens     func(from, to net.Addr) bool
	EndSession  func(clientID string) bool // ends a session at this broker with all that it holds; false: there is none; needed
	ChooseQueue bool                       // the server lets sessions choose what happens when their queue is full
	Changed     func(*Link)                // called when Connected or Reason gives something else; needed
	Logger      *slog.Logger               // needed
}

// Link is one bridge. Its methods are safe for concurrent use; Run is called once.
type Link struct {
	config  Config
	options Options
	out, in rules
	log     *slog.Logger

	connected atomic.Bool
	connects  atomic.Int64
	reason    atomic.Int32 // a Reason
	failures  [len(reasonNames)]atomic.Int64
	Out, In   Figures // from this broker to the other one, and from that to this one

	// Of Run's goroutine.
	made       bool // this link has made the session at this broker, and has never been connected to another one since
	itself     bool // the broker that answered last is this one
	begun      bool // the session at this broker has its subscriptions
	retained   bool // it had none before, and has not been sent the retained messages yet
	subscribed bool // so has the one at the other broker, since the link began

	attempts int    // at the other broker: each begins at the next of its URLs
	url      string // of the last attempt; all of them if none answered, without what is secret
}

// NewLink makes a link of settings that Check found good.
func NewLink(c Config, o Options) *Link {
	if c.Version == 0 {
		c.Version = mqtt.V5
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = DefaultKeepAlive
	}
	if c.MaxInflight == 0 {
		c.MaxInflight = DefaultMaxInflight
		if c.Version == mqtt.V311 {
			c.MaxInflight = DefaultMaxInflightV311
		}
	}
	if c.ClientID == "" {
		c.ClientID = defaultClientID(c.Name)
	}
	l := &Link{config: c, options: o, log: o.Logger.With("bridge", c.Name), url: shown(c.URL)}
	l.out, l.in = rulesOf(c.Topics)
	return l
}

// shown are URLs without what is secret in them.
func shown(urls string) string {
	all := strings.Split(urls, ",")
	for i, url := range all {
		all[i] = secrets.URL(url)
	}
	return strings.Join(all, ",")
}

// defaultClientID is the client ID at the other broker of a bridge that names none.
func defaultClientID(name string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return "holdfast-" + host + "-" + name
}

// Name is the bridge's.
func (l *Link) Name() string { return l.config.Name }

// Connected says whether messages pass at the moment.
func (l *Link) Connected() bool { return l.connected.Load() }

func (l *Link) become(connected bool) {
	l.connected.Store(connected)
	if connected {
		l.reason.Store(int32(NoReason))
	}
	l.options.Changed(l)
}

// Connects is how often the link has connected to both brokers.
func (l *Link) Connects() int64 { return l.connects.Load() }

// The pauses between two attempts to connect.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 30 * time.Second
	// steady is how long a connection must have lasted for the pauses to begin anew.
	steady = time.Minute
)

// Run keeps the link connected until ctx ends.
func (l *Link) Run(ctx context.Context) {
	pause := firstPause
	for {
		began := time.Now()
		err := l.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			pause = firstPause
		}
		l.failed(err)
		wait := pause/2 + rand.N(pause/2+1)
		l.log.Warn("a bridge is not connected", "url", l.url, "error", err, "retry_in", wait.Round(time.Millisecond))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// attempt connects both sides and passes packets on until one of them ends.
func (l *Link) attempt(ctx context.Context) error {
	remote, err := l.connectRemote(ctx)
	if errors.Is(err, errItself) {
		return errors.Join(err, l.withdraw(ctx))
	}
	if err != nil {
		return errors.Join(err, l.begin(ctx))
	}
	l.itself = false
	local, err := l.connectLocal(ctx, remote)
	if err != nil {
		_ = remote.nc.Close()
		return err
	}
	return l.relay(ctx, local, remote)
}

// begin makes the session at this broker before the other broker was reached for the first
// time: messages wait in it from then on. Retained messages wait for the connection with both.
func (l *Link) begin(ctx context.Context) error {
	const noRetained = 2
	if l.begun || l.itself || len(l.out) == 0 {
		return nil
	}
	local, err := l.connectLocal(ctx, nil)
	if err != nil {
		return err
	}
	defer local.nc.Close()
	l.retained = l.retained || !local.ack.SessionPresent
	l.made = l.made || !local.ack.SessionPresent
	wanted := local.subscribe(l.outRules(nil), noRetained)
	if err := local.out.send(local.out.buf, nil); err != nil {
		return err
	}
	for wanted > 0 { // what else comes is sent again on the next connection
		if err := local.next(); err != nil {
			return err
		}
		if local.packet.Type == mqtt.SUBACK {
			wanted--
		}
	}
	l.begun = true
	return local.out.send(mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{}), nil)
}

// outRules are the rules to this broker's subscriptions, with the QoS that the other one takes.
func (l *Link) outRules(remote *side) rules {
	out := make(rules, len(l.out))
	for i, r := range l.out {
		if out[i] = r; remote != nil {
			out[i].qos = min(r.qos, remote.maxQoS)
		}
	}
	return out
}

// connectRemote connects to the other broker.
func (l *Link) connectRemote(ctx context.Context) (*side, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	c, t, err := l.credentials()
	if err != nil {
		return nil, err
	}
	to, err := dial.To(l.config.URL, t)
	if err != nil {
		return nil, err
	}
	to.StartAt(l.attempts)
	l.attempts++
	began := time.Now()
	nc, err := to.Dial(ctx)
	l.url = shown(to.Reached())
	if err != nil {
		return nil, unreached(err)
	}
	from, at := nc.LocalAddr(), nc.RemoteAddr()
	remote, err := connect(ctx, "the other broker", nc, c, l.options.MaxPacket)
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) && l.options.Listens(from, at) {
		refusal.By = "it"
		return nil, fmt.Errorf("%s %w: %w", l.url, errItself, refusal)
	}
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) && refusal.Code == mqtt.UnsupportedProtocolVersion && c.Version == mqtt.V5 {
		return nil, fmt.Errorf("%w; set version: 3.1.1", err)
	}
	if err == nil && l.options.Own(l.config.ClientID, nc.LocalAddr(), began) {
		_ = nc.Close()
		if !remote.ack.SessionPresent {
			l.options.EndSession(l.config.ClientID)
		}
		return nil, fmt.Errorf("%s %w", l.url, errItself)
	}
	return remote, err
}

// unreached is an error of dial without what is secret in the URLs.
func unreached(err error) error {
	var several *dial.Failures
	if !errors.As(err, &several) {
		return secrets.OfRequest(err)
	}
	hidden := &dial.Failures{}
	for i, err := range several.Errs {
		hidden.Addresses = append(hidden.Addresses, secrets.URL(several.Addresses[i]))
		hidden.Errs = append(hidden.Errs, secrets.OfRequest(err))
	}
	return hidden
}

// credentials makes the CONNECT for the other broker, and the TLS configuration; both are
// read from their files each time, as they may have changed.
func (l *Link) credentials() (*mqtt.Connect, *tls.Config, error) {
	c := &mqtt.Connect{
		Version: l.config.Version, ClientID: []byte(l.config.ClientID), KeepAlive: uint16(l.config.KeepAlive / time.Second),
		SessionExpiry: neverExpires, ReceiveMaximum: min(uint16(l.config.MaxInflight), l.options.ReceiveMaximum), RequestProblemInfo: true,
		MaximumPacketSize: uint32(l.inPacket()), Bridge: l.config.Version == mqtt.V311,
	}
	if l.config.Username != "" {
		c.HasUsername, c.Username = true, []byte(l.config.Username)
	}
	if l.config.PasswordFile != "" {
		password, err := os.ReadFile(l.config.PasswordFile)
		if err != nil {
			return nil, nil, fmt.Errorf("password-file: %w", err)
		}
		line, _, _ := strings.Cut(string(password), "\n")
		c.HasPassword, c.Password = true, []byte(strings.TrimSuffix(line, "\r"))
	}
	t, err := l.config.TLS.load(l.config.encrypted())
	return c, t, err
}

const neverExpires = 0xFFFFFFFF

// load reads the files.
func (t *TLS) load(encrypted bool) (*tls.Config, error) {
	if !encrypted {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls-ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls-ca: %s has no certificate in PEM form", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls-cert, tls-key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// viaBytes is by how many bytes ViaProperty makes a packet longer, with what lengths grow by.
func (l *Link) viaBytes() int { return 1 + 2 + len(ViaProperty) + 2 + len(l.options.Self) + 6 }

// inPacket is the largest packet, in bytes, that the other broker may send: what the link makes of it
// fits this broker.
func (l *Link) inPacket() int { return l.options.MaxPacket - max(0, l.in.growth()) - l.viaBytes() }

// connectLocal connects to this broker. remote: whose bounds this broker is to keep; nil:
// none.
func (l *Link) connectLocal(ctx context.Context, remote *side) (*side, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	c := &mqtt.Connect{
		Version: mqtt.V5, ClientID: []byte(ClientPrefix + l.config.Name), SessionExpiry: neverExpires, ReceiveMaximum: 1,
		RequestProblemInfo: true,
	}
	if remote != nil {
		c.ReceiveMaximum = min(uint16(l.config.MaxInflight), remote.ack.ReceiveMaximum)
		if remote.maxPacket > 0 {
			c.MaximumPacketSize = uint32(max(least, remote.maxPacket-max(0, l.out.growth())-l.viaBytes()))
		}
	}
	if policy := l.config.QueueFull; l.options.ChooseQueue || policy != "" {
		if policy == "" {
			policy = limits.Reject
		}
		c.Raw = mqtt.AppendUserProp(nil, limits.QueueFullProperty, policy)
	}
	nc, err := l.options.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return connect(ctx, "this broker", nc, c, 2*l.options.MaxPacket)
}

// least is the smallest Maximum Packet Size with which the link connects to this broker: its CONNACK must fit.
const least = 512

// relay passes packets on until a side ends or ctx does.
func (l *Link) relay(ctx context.Context, local, remote *side) error {
	out := &path{from: local, to: remote, rules: l.outRules(remote), figures: &l.Out, reserved: nothingReserved, self: l.options.Self, log: l.log}
	in := &path{from: remote, to: local, rules: l.in, figures: &l.In, reserved: l.options.Reserved, limits: l.options.Limits, self: l.options.Self, log: l.log}
	out.back, in.back = in, out
	const always, ofNew = 0, 1 // which retained messages a subscription is sent: all, or those of a new one
	wanted := 0                // SUBACKs
	if l.retained {
		wanted += local.subscribe(out.rules, always)
	} else {
		wanted += local.subscribe(out.rules, ofNew)
	}
	if remote.version == mqtt.V5 || !remote.ack.SessionPresent || !l.subscribed { // before MQTT 5 each sends them
		wanted += remote.subscribe(in.rules, ofNew)
	}
	var answered atomic.Int32
	subscribed := func() {
		if int(answered.Add(1)) < wanted {
			return
		}
		l.connects.Add(1)
		l.become(true)
		l.log.Info("a bridge is connected", "url", l.url, "session_present", remote.ack.SessionPresent)
	}
	out.subscribed, in.subscribed = subscribed, subscribed
	if wanted == 0 {
		subscribed()
	}
	stop := make(chan struct{})
	failed := make(chan error, 4)
	var running sync.WaitGroup
	for _, f := range []func() error{
		func() error { return local.out.write(local.interval, stop) },
		func() error { return remote.out.write(remote.interval, stop) },
		out.run,
		in.run,
	} {
		running.Go(func() {
			if err := f(); err != nil {
				failed <- err
			}
		})
	}
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	close(stop)
	if err == nil {
		remote.leave()
	}
	_ = local.nc.Close()
	_ = remote.nc.Close()
	running.Wait()
	if int(answered.Load()) >= wanted {
		l.begun, l.subscribed, l.retained, l.made = true, true, false, false
		l.become(false)
	}
	return err
}

// nothingReserved says that messages of all topics may pass.
func nothingReserved([]byte) bool { return false }
