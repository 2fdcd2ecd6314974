package clustered_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/front"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/mux"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// front runs a front of the cluster, and waits until it has its links.
func (c *cluster) front(change func(*front.Options)) (f *front.Front, address string) {
	c.t.Helper()
	s := settings.Settings{Peers: c.peers}
	peers, err := s.ParsePeers()
	if err != nil {
		c.t.Fatal(err)
	}
	o := front.Options{
		Listeners: []listen.Config{{URL: listen.URL{Scheme: listen.MQTT, Host: "127.0.0.1:0"}}}, Peers: peers,
		MaxConnections: 1000, MaxBuffered: front.DefaultMaxBuffered, Links: 2, ConnectTimeout: patience, Logger: slog.New(slog.NewTextHandler(c.log, nil)).With("at", "front"),
	}
	if change != nil {
		change(&o)
	}
	if f, err = front.Start(o); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(f.Close)
	c.until("the front has its links", func() bool { return f.Figures().Links == o.Links && f.Unready() == nil })
	return f, f.URLs()[0].Host
}

// Clients of a front have all that clients of a node have.
func TestClientsOfAFront(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	leader, others := c.leader()
	f, at := c.front(nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	// Many clients write and read at the same time.
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			cl, err := client.Dial(ctx, at)
			if err != nil {
				t.Error(err)
				return
			}
			defer cl.Close()
			key, value := fmt.Sprint("key", i), strings.Repeat(fmt.Sprint(i), 20_000)
			if _, err := cl.Set(ctx, key, []byte(value)); err != nil {
				t.Error(err)
			}
			if v, found, err := cl.Get(ctx, key); string(v.Bytes) != value || !found || err != nil {
				t.Errorf("%s: %d bytes, %v, %v", key, len(v.Bytes), found, err)
			}
		})
	}
	all.Wait()
	c.get(others[0], "key7", strings.Repeat("7", 20_000))

	// The leader changes: connections end, and sessions with their messages are there again.
	sub := mqtttest.Connect(t, at, mqtttest.Persistent("subscriber"))
	sub.Subscribe("news", 1)
	if err := control.Transfer(ctx, c.dirs[leader], others[0]); err != nil {
		t.Fatal(err)
	}
	sub.AwaitDisconnect(mqtt.ServerShuttingDown)
	c.until("another node leads", func() bool { now, _ := c.leader(); return now != leader })
	pub := mqtttest.Connect(t, c.addrs[others[1]], mqtttest.ClientID("publisher"))
	pub.PublishAll([]mqtttest.Message{{Topic: "news", Payload: "waiting", QoS: 1}})
	c.until("the front has links to the new leader", func() bool {
		now, _ := c.leader()
		n := f.Figures()
		return n.Links == 2 && n.Term == c.nodes[now].Status().Term
	})
	again := mqtttest.Dial(t, at)
	if connack := again.Connect(mqtttest.Persistent("subscriber"), mqtttest.Resume()); !connack.SessionPresent {
		t.Error("the session is gone")
	}
	if got := again.Receive().Payload; got != "waiting" {
		t.Errorf("got %q", got)
	}
}

// While the leadership moves, a front holds new clients until the next leader is there: none of them
// is refused.
func TestNewClientsWhileTheLeadershipMoves(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	f, at := c.front(nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := range 3 {
		leader, others := c.leader()
		c.until("the front has links to the leader", func() bool {
			n := f.Figures()
			return n.Links == 2 && n.Term == c.nodes[leader].Status().Term
		})
		watcher := mqtttest.Connect(t, at, mqtttest.ClientID(fmt.Sprint("watcher", i)))
		if err := control.Transfer(ctx, c.dirs[leader], others[0]); err != nil {
			t.Fatal(err)
		}
		watcher.AwaitDisconnect(mqtt.ServerShuttingDown)
		var all sync.WaitGroup
		for j := range 20 {
			all.Go(func() {
				cl := mqtttest.Dial(t, at)
				if code := cl.Connect(mqtttest.ClientID(fmt.Sprint("new", i, "/", j))).Code; code != 0 {
					t.Errorf("a new client is refused with %v", code)
				}
			})
		}
		all.Wait()
	}
	if n := f.Figures().Unserved; n != 0 {
		t.Errorf("%d clients were refused", n)
	}
}

// The front answers pings, and sees to it that silent clients are disconnected; the server does
// not know of either. When a client is gone, its will is published.
func TestKeepAliveAtAFront(t *testing.T) {
	t.Parallel()
	c := start(t, "a")
	leader, _ := c.leader()
	f, at := c.front(nil)
	sub := mqtttest.Connect(t, c.addrs[leader], mqtttest.ClientID("subscriber"), mqtttest.KeepAlive(0))
	sub.Subscribe("wills/#", 0)

	// Given a client that pings, and two that say nothing more, one of MQTT 3.1.1,
	pings := mqtttest.Connect(t, at, mqtttest.ClientID("pings"), mqtttest.KeepAlive(3), mqtttest.Will(mqtttest.Message{Topic: "wills/pings"}, 0))
	silent := mqtttest.Connect(t, at, mqtttest.ClientID("silent"), mqtttest.KeepAlive(3), mqtttest.Will(mqtttest.Message{Topic: "wills/silent"}, 0))
	old := mqtttest.Connect(t, at, mqtttest.V311(), mqtttest.ClientID("old"), mqtttest.KeepAlive(3), mqtttest.Will(mqtttest.Message{Topic: "wills/old"}, 0))
	over := make(chan struct{})
	go func() {
		defer close(over)
		for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			if err := pings.WriteErr([]byte{byte(mqtt.PINGREQ) << 4, 0}); err != nil {
				t.Errorf("the client that pings: %v", err)
			}
		}
	}()
	// when they have been silent for too long, then they are disconnected,
	silent.AwaitDisconnect(mqtt.KeepAliveTimeout)
	old.AwaitEnd()
	gone := []string{sub.Receive().Topic, sub.Receive().Topic}
	slices.Sort(gone)
	if !slices.Equal(gone, []string{"wills/old", "wills/silent"}) {
		t.Errorf("the wills %q are published", gone)
	}
	// and the other one is not, although the server hears nothing of it.
	<-over
	pings.Subscribe("anything", 0)
	if n := f.Figures(); n.Silent != 2 || n.Pings < 10 {
		t.Errorf("%+v", n)
	}
	pings.Drop()
	if got := sub.Receive().Topic; got != "wills/pings" {
		t.Errorf("the will %s is published", got)
	}
}

// Beyond its bound a front takes no connection, until one has ended.
func TestConnectionsOfAFrontAreBounded(t *testing.T) {
	t.Parallel()
	c := start(t, "a")
	c.leader()
	f, at := c.front(func(o *front.Options) { o.MaxConnections = 2 })
	mqtttest.Connect(t, at, mqtttest.ClientID("1"))
	second := mqtttest.Connect(t, at, mqtttest.ClientID("2"))
	mqtttest.Dial(t, at).ExpectClosed()
	second.Disconnect()
	c.until("a connection has ended", func() bool { return f.Figures().Connections == 1 })
	mqtttest.Connect(t, at, mqtttest.ClientID("3"))
	if n := f.Figures(); n.Beyond != 1 {
		t.Errorf("%+v", n)
	}
}

// What is no CONNECT does not get to a node, and a client that says nothing has its time.
func TestStrangersAtAFront(t *testing.T) {
	t.Parallel()
	c := start(t, "a")
	c.leader()
	_, at := c.front(func(o *front.Options) { o.ConnectTimeout = 2 * time.Second })
	stranger := mqtttest.Dial(t, at)
	stranger.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	stranger.ExpectClosed()
	mqtttest.Dial(t, at).ExpectClosed()
	slow := mqtttest.Dial(t, at)
	slow.Write([]byte{0x10})
	slow.ExpectClosed()
	mqtttest.Connect(t, at, mqtttest.ClientID("honest"))
}

// A client that does not read keeps its messages at the server, and holds up no other client.
func TestAClientOfAFrontThatDoesNotRead(t *testing.T) {
	t.Parallel()
	c := start(t, "a")
	leader, _ := c.leader()
	_, at := c.front(func(o *front.Options) { o.Links = 1 })
	slow, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	_ = slow.(*net.TCPConn).SetReadBuffer(4 << 10)
	reader := mqtttest.NewClient(t, slow)
	reader.Connect(mqtttest.ClientID("slow"), mqtttest.KeepAlive(0))
	reader.Subscribe("load", 0)
	pub := mqtttest.Connect(t, c.addrs[leader], mqtttest.ClientID("publisher"))
	for range 200 {
		pub.Publish(mqtttest.Message{Topic: "load", Payload: strings.Repeat("x", 64<<10), QoS: 1})
	}
	other := mqtttest.Connect(t, at, mqtttest.ClientID("other"))
	other.Subscribe("hello", 0)
	other.Publish(mqtttest.Message{Topic: "hello", Payload: "there", QoS: 1})
	if m := other.Receive(); m.Payload != "there" {
		t.Errorf("%v", m)
	}
	if m := reader.Receive(); m.Topic != "load" {
		t.Errorf("%v", m)
	}
}

// What clients of a front have not read is bounded for all of them together: beyond, those that do
// not read are disconnected, and the others are not.
func TestWhatClientsOfAFrontDoNotReadIsBounded(t *testing.T) {
	t.Parallel()
	c := start(t, "a")
	leader, _ := c.leader()
	const most = 4 * mux.Window
	f, at := c.front(func(o *front.Options) { o.MaxBuffered = most })
	slow := func(n int) {
		t.Helper()
		for i := range n {
			conn, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
			reader := mqtttest.NewClient(t, conn)
			reader.Connect(mqtttest.ClientID(fmt.Sprint("slow", n, "/", i)), mqtttest.KeepAlive(0))
			reader.Subscribe("load", 0)
		}
	}
	pub := mqtttest.Connect(t, c.addrs[leader], mqtttest.ClientID("publisher"))
	other := mqtttest.Connect(t, at, mqtttest.ClientID("other"), mqtttest.KeepAlive(0))
	other.Subscribe("hello", 0)
	publish := func(why string, so func() bool) {
		t.Helper()
		c.until(why, func() bool {
			pub.Publish(mqtttest.Message{Topic: "load", Payload: strings.Repeat("x", 64<<10), QoS: 1})
			return so()
		})
	}
	slow(3) // up to three windows
	stuck := 0
	publish("clients do not read what came", func() bool {
		if f.Figures().Buffered > 0 {
			stuck++
		}
		return stuck > 200
	})
	if n := f.Figures(); n.Slow != 0 || n.Buffered > most || n.MaxBuffered != most {
		t.Errorf("below the bound: %+v", n)
	}
	slow(20)
	publish("clients are disconnected", func() bool { return f.Figures().Slow > 0 })
	c.until("there is room again", func() bool { return f.Figures().Buffered <= most })
	other.Publish(mqtttest.Message{Topic: "hello", Payload: "there", QoS: 1})
	if m := other.Receive(); m.Payload != "there" {
		t.Errorf("%v", m)
	}
}

// While no node leads, clients are held for a while and then told, and the log says once what is wrong with each node.
func TestAFrontWithoutALeader(t *testing.T) {
	t.Parallel()
	log := &logs.Text{}
	o := front.Options{
		Listeners: []listen.Config{{URL: listen.URL{Scheme: listen.MQTT, Host: "127.0.0.1:0"}}}, Peers: []settings.Peer{{Name: "a", Address: address(t)}},
		MaxConnections: 10, MaxBuffered: front.DefaultMaxBuffered, Links: 1, ConnectTimeout: patience, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	f, err := front.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := f.URLs()[0].Host
	var all sync.WaitGroup
	all.Go(func() { mqtttest.Refused(t, at, mqtt.ServerUnavailable, mqtttest.ClientID("5")) })
	all.Go(func() { mqtttest.Refused(t, at, mqtt.ServerUnavailable, mqtttest.V311(), mqtttest.ClientID("4")) })
	all.Wait()
	if n := f.Figures(); n.Unserved != 2 || len(f.Unready()) != 1 {
		t.Errorf("%+v, %q", n, f.Unready())
	}
	said := 0
	for _, line := range log.Take() {
		if strings.Contains(line, "which one leads") && strings.Contains(line, o.Peers[0].Address+": ") && strings.Contains(line, "connection refused") {
			said++
		}
	}
	if said != 1 {
		t.Errorf("the log says %d times why no node leads, want once", said)
	}
}
