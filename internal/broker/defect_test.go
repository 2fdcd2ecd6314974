package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// misreading is a Handler whose decoder has a defect.
type misreading struct{ conn *Conn }

func (misreading) Open(c *Conn) Endpoint { return misreading{c} }
func (m misreading) Handle(t *session.Turn, p *mqtt.Publish) {
	m.conn.BeginDecoding()
	if string(p.Payload) == "defect" {
		panic("a defect in decoding")
	}
	m.conn.EndDecoding()
	m.conn.Answer(t, p, mqtt.Success, "", nil)
}
func (misreading) Close() {}

// A defect in decoding ends the connection that it shows on, with a line in the log,
// and nothing else: what the same read had before it is delivered, the client's will
// is published, and its next connection works.
func TestADefectInDecodingEndsOneConnection(t *testing.T) {
	t.Parallel()
	var log logs.Text
	n := run(t, vfs.NewMem(), Limits{}, func(_ *journal.Options, o *Options) {
		o.Handler, o.Handled = misreading{}, []string{"handled"}
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	subscriber := n.connect()
	subscriber.Subscribe("#", 1)
	unlucky := n.connect(mqtttest.ClientID("unlucky"), mqtttest.Will(publication{Topic: "will", Payload: "gone"}, 0))

	packets := mqtttest.EncodePublish(mqtt.V5, publication{Topic: "before", QoS: 1, PacketID: 1})
	packets = append(packets, mqtttest.EncodePublish(mqtt.V5, publication{Topic: "handled", QoS: 1, PacketID: 2, Payload: "defect"})...)
	packets = append(packets, mqtttest.EncodePublish(mqtt.V5, publication{Topic: "after", QoS: 1, PacketID: 3})...)
	unlucky.Write(packets)

	unlucky.AwaitAck(mqtt.PUBACK, 1)
	unlucky.ExpectDisconnect(mqtt.UnspecifiedError)
	for _, want := range []string{"before", "will"} {
		if got := subscriber.Receive(); got.Topic != want {
			t.Errorf("got %v, want the message to %s", got, want)
		}
	}
	n.connect(mqtttest.ClientID("unlucky")).Publish(publication{Topic: "handled", QoS: 1})
	if text := log.String(); !strings.Contains(text, "a defect in decoding") || !strings.Contains(text, "client=unlucky") {
		t.Errorf("the log says %q", text)
	}
	if got := n.broker.Stats().Panics.Load(); got != 1 {
		t.Errorf("%d connections count as failed, want 1", got)
	}
}

// poisoned is a connection whose Read has a defect from the second call on.
type poisoned struct {
	net.Conn
	reads *int
}

func (p poisoned) Read(b []byte) (int, error) {
	if *p.reads++; *p.reads > 1 {
		panic("a defect in reading")
	}
	return p.Conn.Read(b)
}

func TestADefectInReadingEndsOneConnection(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	bystander := n.connect()
	client, server := net.Pipe()
	l := &fixedListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- n.broker.Serve(l) }()
	l.conns <- poisoned{server, new(int)}
	unlucky := mqtttest.NewClient(t, client)
	_ = unlucky.WriteErr(unlucky.EncodeConnect())
	unlucky.ExpectClosed()
	bystander.Ping()
	n.broker.Close(t.Context())
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// fixedListener accepts the connections that the test gives it.
type fixedListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *fixedListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *fixedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *fixedListener) Addr() net.Addr { return &net.TCPAddr{} }

// eager is a listener that always has another connection, which has ended.
type eager struct{ fixedListener }

func (l *eager) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	client, server := net.Pipe()
	client.Close()
	return server, nil
}

// Connections come while the broker closes: none of them is counted by a WaitGroup
// that is waited for already, which the race detector sees.
func TestConnectionsComeWhileTheBrokerCloses(t *testing.T) {
	t.Parallel()
	for range 20 {
		n := run(t, vfs.NewMem(), Limits{})
		l := &eager{fixedListener{closed: make(chan struct{})}}
		served := make(chan error, 1)
		go func() { served <- n.broker.Serve(l) }()
		n.connect().Ping()
		n.broker.Close(t.Context())
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) { // which says that it had not begun
			t.Error(err)
		}
	}
}

// A subscription's options change while publishes ask, on a disk that is nearly
// full, whether they need it: the race detector sees whether both hold the lock.
func TestSubscriptionsChangeWhileTheDiskIsNearlyFull(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.Default, Limits{}, func(o *journal.Options, _ *Options) {
		o.Dir = t.TempDir()
		usage, err := vfs.Default.GetDiskUsage(o.Dir)
		if err != nil {
			t.Fatal(err)
		}
		o.Reserve = int64(usage.TotalBytes) - 1 // no disk has so much free
	})
	subscriber, publisher := n.connect(), n.connect()
	var working sync.WaitGroup
	working.Go(func() {
		for i := range 200 {
			subscriber.SendSubscribe(0, mqtttest.Sub{Filter: "topic", QoS: byte(1 + i%2)})
			subscriber.Ping()
		}
	})
	for range 200 {
		publisher.Publish(publication{Topic: "topic", QoS: 1})
	}
	working.Wait()
}

// Groups begin and end while messages wait in them and are passed on.
func TestGroupsComeAndGoWhileMessagesWait(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxQueued: 3, QueueFull: limits.DropOldest})
	const rounds = 100
	var working sync.WaitGroup
	for _, id := range []string{"a", "b"} {
		working.Go(func() {
			for range rounds {
				member := n.connect(mqtttest.Persistent(id))
				member.SendSubscribe(0, mqtttest.Sub{Filter: "$share/group/topic", QoS: 1})
				member.Ping()
				member.Drop()
				member = n.connect(mqtttest.Persistent(id))
				member.Unsubscribe("$share/group/topic")
				member.Drop()
			}
		})
	}
	for range 2 {
		publisher := n.connect()
		working.Go(func() {
			for i := range 4 * rounds {
				publisher.Offer(publication{Topic: "topic", QoS: 1, Payload: fmt.Sprint(i)})
			}
		})
	}
	working.Wait()
}
