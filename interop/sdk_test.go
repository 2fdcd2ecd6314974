package interop

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/mqtt"
	"github.com/Azure/iot-operations-sdks/go/mqtt/retry"
	"github.com/Azure/iot-operations-sdks/go/protocol"
	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
)

type (
	store  = statestore.Client[string, string]
	notify = statestore.Notify[string, string]
)

// sdkClient is what an application of the SDK holds: a session client that
// reconnects by itself, and a state store client on top of it.
type sdkClient struct {
	*store
	app       *protocol.Application
	session   *mqtt.SessionClient
	connected <-chan struct{} // one per successful connection
	fatal     <-chan error    // the session client has given up

	attempts atomic.Uint64 // to connect

	mu   sync.Mutex
	conn net.Conn // mu; the current connection
}

// sdkOptions are what a test may vary. The zero value is what applications use.
type sdkOptions struct {
	id            string // client ID; empty: one that no other test uses
	store         []statestore.ClientOption
	maxClockDrift time.Duration
	session       []mqtt.SessionClientOption
	others        []*server // nodes of a cluster that it connects to besides, in turn
}

// connectSDK returns a connected and started client of its own name.
//
// The session client is connected before the state store client is made: the
// latter registers for connect events, and if the first of these were still on
// its way it would report keys watched by then as if after a reconnect.
func connectSDK(t *testing.T, s *server) *sdkClient {
	t.Helper()
	return connectSDKWith(t, s, sdkOptions{})
}

func connectSDKWith(t *testing.T, s *server, o sdkOptions) *sdkClient {
	t.Helper()
	log := &output{changed: make(chan struct{}, 1)}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))

	c := &sdkClient{}
	if o.id == "" {
		o.id = uniqueName("sdk")
	}
	c.session = c.newSession(t, slices.Concat([]*server{s}, s.others, o.others), o.id, logger, o.session...)
	connected, fatal := make(chan struct{}, 64), make(chan error, 1)
	c.connected, c.fatal = connected, fatal
	c.session.RegisterConnectEventHandler(func(*mqtt.ConnectEvent) { connected <- struct{}{} })
	c.session.RegisterFatalErrorHandler(func(err error) { fatal <- err })
	if err := c.session.Start(); err != nil {
		t.Fatalf("starting the SDK's session client: %v", err)
	}
	c.awaitConnection(t)

	var err error
	if c.app, err = protocol.NewApplication(protocol.WithMaxClockDrift(o.maxClockDrift)); err != nil {
		t.Fatal(err)
	}
	options := append([]statestore.ClientOption{statestore.WithLogger(logger)}, o.store...)
	if c.store, err = statestore.New[string, string](c.app, c.session, options...); err != nil {
		t.Fatalf("creating the SDK's state store client: %v", err)
	}
	if err := c.store.Start(deadline(t)); err != nil {
		t.Fatalf("starting the SDK's state store client: %v", err)
	}
	t.Cleanup(func() {
		c.close(t)
		if t.Failed() {
			t.Logf("last log of SDK client %s:\n%s", c.session.ID(), log.tail())
		}
	})
	return c
}

// connection is how the SDK connects to a server, over TCP or TLS.
func connection(t *testing.T, s *server) mqtt.ConnectionProvider {
	t.Helper()
	host, portText, err := net.SplitHostPort(s.tcp)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	if site != "" {
		return mqtt.TLSConnection(host, uint16(port), mqtt.WithCA(siteFile("ca.crt")), mqtt.WithX509(siteFile("admin.crt"), siteFile("admin.key")))
	}
	return mqtt.TCPConnection(host, uint16(port))
}

// newSession makes a session client over TCP or TLS, with a password where the servers want
// one, that retries sooner than the SDK's default, and whose connection a test can cut. It
// connects to one server after the other.
func (c *sdkClient) newSession(t *testing.T, servers []*server, id string, logger *slog.Logger, more ...mqtt.SessionClientOption) *mqtt.SessionClient {
	t.Helper()
	var connections []mqtt.ConnectionProvider
	for _, s := range servers {
		connections = append(connections, connection(t, s))
	}
	options := []mqtt.SessionClientOption{
		mqtt.WithConnectionTimeout(5 * time.Second),
		mqtt.WithConnectionRetry(&retry.ExponentialBackoff{
			MinInterval: 10 * time.Millisecond, MaxInterval: 100 * time.Millisecond,
		}),
		mqtt.WithLogger(logger),
	}
	if servers[0].logins {
		options = append(options, mqtt.WithUsername(mqtt.ConstantUsername(user)), mqtt.WithPassword(mqtt.ConstantPassword([]byte(userPassword))))
	}
	session, err := mqtt.NewSessionClient(
		id,
		func(ctx context.Context) (net.Conn, error) {
			conn, err := connections[(c.attempts.Add(1)-1)%uint64(len(connections))](ctx)
			if err == nil {
				c.mu.Lock()
				c.conn = conn
				c.mu.Unlock()
			}
			return conn, err
		},
		append(options, more...)...,
	)
	if err != nil {
		t.Fatalf("creating the SDK's session client: %v", err)
	}
	return session
}

// cut breaks the current connection without a DISCONNECT.
func (c *sdkClient) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn.Close()
}

// sentAgain says whether a failover may have had the SDK send a request a second time since the client had attempted
// to connect so many times. If the first one was executed, the second finds its effects: a DEL nothing, a SET with NX a
// value (docs/protocol.md, "When the connection is lost").
func (c *sdkClient) sentAgain(attempts uint64) bool {
	return underFailovers && c.attempts.Load() != attempts
}

// awaitConnection waits for the next successful connection. A session client
// that finds its session gone (Session Present 0) gives up instead.
func (c *sdkClient) awaitConnection(t *testing.T) {
	t.Helper()
	select {
	case <-c.connected:
	case err := <-c.fatal:
		t.Fatalf("the SDK's session client gave up: %v", err)
	case <-time.After(patience):
		t.Fatalf("the SDK's session client did not connect within %v", patience)
	}
}

// close unsubscribes, disconnects and ends the session. It fails the test if the
// session client had given up before.
func (c *sdkClient) close(t *testing.T) {
	select {
	case err := <-c.fatal:
		t.Errorf("the SDK's session client %s gave up: %v", c.session.ID(), err)
	default:
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		c.store.Close()
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Errorf("closing the SDK's state store client: no UNSUBACK within %v", patience)
	}
	if err := c.session.Stop(); err != nil {
		t.Errorf("stopping the SDK's session client: %v", err)
	}
}

// set is Set that must be answered and applied; it returns the new version.
func (c *sdkClient) set(t *testing.T, key, value string, opt ...statestore.SetOption) hlc.HybridLogicalClock {
	t.Helper()
	res, err := c.Set(deadline(t), key, value, opt...)
	if err != nil {
		t.Fatalf("SET %q: %v", key, err)
	}
	if !res.Value || res.Version.IsZero() {
		t.Fatalf("SET %q: applied %v with version %v, want applied with a version", key, res.Value, res.Version)
	}
	return res.Version
}

// get is Get that must be answered.
func (c *sdkClient) get(t *testing.T, key string) (value string, version hlc.HybridLogicalClock) {
	t.Helper()
	res, err := c.Get(deadline(t), key)
	if err != nil {
		t.Fatalf("GET %q: %v", key, err)
	}
	return res.Value, res.Version
}

// listen collects a key's notifications until the test ends, without registering
// for them. The SDK holds a lock while a notification waits for its reader, so
// there always is one.
func (c *sdkClient) listen(t *testing.T, key string) <-chan notify {
	t.Helper()
	arriving, done := c.Notify(key)
	t.Cleanup(done)
	collected := make(chan notify, 1024)
	go func() {
		for n := range arriving {
			collected <- n
		}
	}()
	return collected
}

// watch registers for a key's notifications and collects them until the test
// ends. The SDK hands every notification to a goroutine of its own: two that are
// under way at once may arrive in either order.
func (c *sdkClient) watch(t *testing.T, key string) <-chan notify {
	t.Helper()
	notifications := c.listen(t, key)
	if err := c.KeyNotify(deadline(t), key); err != nil {
		t.Fatalf("KEYNOTIFY %q: %v", key, err)
	}
	return notifications
}

// mustFailWith asserts one of the store's documented errors.
func mustFailWith(t *testing.T, what string, err error, want statestore.ServiceError) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %q", what, err, string(want))
	}
}

// mustEqual asserts that two versions are the same one.
func mustEqual(t *testing.T, what string, got, want hlc.HybridLogicalClock) {
	t.Helper()
	if got.Compare(want) != 0 {
		t.Errorf("%s: version %v, want %v", what, got, want)
	}
}

// mustRise asserts that a version is newer than another.
func mustRise(t *testing.T, what string, older, newer hlc.HybridLogicalClock) {
	t.Helper()
	if newer.Compare(older) <= 0 {
		t.Errorf("%s: version %v, want one after %v", what, newer, older)
	}
}

// uniqueName makes a client ID, or another name, that no other test uses.
func uniqueName(what string) string { return what + "-" + rand.Text() }

// uniqueTopic makes a topic that no other test uses, and that the policy of the tests allows.
func uniqueTopic(what string) string { return "interop/" + uniqueName(what) }

// uniqueKey makes a key that no other test uses, and that the policy of the tests allows.
func uniqueKey(what string) string { return "interop:" + uniqueName(what) }
