package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/listen/proxy"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// begin runs a program until the test ends, and waits until it listens.
func begin(t *testing.T, cmd *exec.Cmd) *process.Process {
	t.Helper()
	p, err := process.Start(cmd, regexp.MustCompile("holdfast listening on"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !p.Stop(process.Patience) {
			t.Errorf("%s had to be killed", cmd)
		}
		if t.Failed() {
			t.Logf("%s\n%s", cmd, p.Output())
		}
	})
	if err := p.AwaitReady(); err != nil {
		t.Fatal(err)
	}
	return p
}

// beginFront runs a front of nodes that listen for each other at these addresses.
func beginFront(t *testing.T, between []string, flags ...string) *process.Process {
	t.Helper()
	var peers []string
	for i, at := range between {
		peers = append(peers, fmt.Sprintf("n%d=%s", i, at))
	}
	return begin(t, exec.Command(binary, append([]string{"front", "--cluster-peers", strings.Join(peers, ",")}, flags...)...))
}

// Behind a front the leader is killed, again and again. Clients of the front have their sessions
// when they connect again, and every message that was acknowledged comes.
func TestLeadersAreKilledBehindAFront(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var places []nodes.Place
	var between []string
	for _, name := range []string{"a", "b", "c"} {
		p := nodes.Place{Name: name, Clients: testserver.FreeAddress(), Between: testserver.FreeAddress(), Data: dir + "/" + name}
		places, between = append(places, p), append(between, p.Between)
	}
	c := nodes.At(binary, places)
	t.Cleanup(func() { c.Kill(c.Nodes()...) })
	if err := c.Start(c.Nodes()...); err != nil {
		t.Fatal(err)
	}
	at := testserver.FreeAddress()
	beginFront(t, between, "--listen", at)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	v, err := c.AwaitLeader(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}

	// Given a subscriber that is away, and a publisher that goes on,
	sub := resumed(ctx, t, at, false)
	sub.Subscribe("news", 1)
	sub.Drop()
	publisher, err := client.DialSession(ctx, at, client.WithClientID("publisher"))
	if err != nil {
		t.Fatal(err)
	}
	defer publisher.Close()
	var mu sync.Mutex
	var acked []string
	publishing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for i := 0; publishing.Err() == nil; i++ {
			text := fmt.Sprint(i)
			if err := publisher.Publish(publishing, client.Message{Topic: "news", Payload: []byte(text)}); err == nil {
				mu.Lock()
				acked = append(acked, text)
				mu.Unlock()
			}
			time.Sleep(5 * time.Millisecond) // the session's queue is bounded
		}
	})
	more := func() {
		t.Helper()
		mu.Lock()
		before := len(acked)
		mu.Unlock()
		for {
			mu.Lock()
			now := len(acked)
			mu.Unlock()
			if now > before+10 {
				return
			}
			if ctx.Err() != nil {
				t.Fatal("nothing is acknowledged any more")
			}
			time.Sleep(time.Millisecond)
		}
	}
	for range 3 {
		more()
		// when the leader is killed, then the session is there after the next one has been elected.
		if v, err = c.AwaitLeader(ctx, 0); err != nil { // it may have changed, on a machine that is busy
			t.Fatal(err)
		}
		killed := v.Leader
		c.Kill(killed)
		resumed(ctx, t, at, true).Drop()
		if v, err = c.AwaitLeader(ctx, v.Term); err != nil {
			t.Fatal(err)
		}
		more()
		if err := killed.Launch(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	running.Wait()
	receiveAll(ctx, t, at, acked)
}

// resumed connects the subscriber, which finds its session if there was one.
func resumed(ctx context.Context, t *testing.T, at string, session bool) *mqtttest.Client {
	t.Helper()
	for ctx.Err() == nil {
		c := mqtttest.Dial(t, at)
		c.SendConnect(mqtttest.Persistent("subscriber"), mqtttest.Resume())
		p, err := c.Read(time.Now().Add(mqtttest.Deadline))
		if err != nil || p.Type != mqtt.CONNACK || p.Connack.Code != mqtt.Success {
			c.Drop()
			continue // no leader yet, after 5 s, or it has just been killed
		}
		if p.Connack.SessionPresent != session {
			t.Fatalf("Session Present is %v", p.Connack.SessionPresent)
		}
		return c
	}
	t.Fatal("no CONNECT succeeds")
	return nil
}

// receiveAll has the subscriber get messages until it has all of these.
func receiveAll(ctx context.Context, t *testing.T, at string, want []string) {
	t.Helper()
	missing := map[string]bool{}
	for _, text := range want {
		missing[text] = true
	}
	for len(missing) > 0 && ctx.Err() == nil {
		c := resumed(ctx, t, at, true)
		for len(missing) > 0 {
			p, err := c.Read(time.Now().Add(30 * time.Second))
			if err != nil {
				break // another node leads, or nothing comes any more
			}
			if p.Type == mqtt.PUBLISH {
				delete(missing, p.Publish.Payload)
				_ = c.WriteErr([]byte{byte(mqtt.PUBACK) << 4, 2, byte(p.Publish.PacketID >> 8), byte(p.Publish.PacketID)})
			}
		}
		c.Drop()
		if len(missing) > 0 {
			t.Logf("%d messages are missing; connecting again", len(missing))
		}
	}
	if len(missing) > 0 {
		t.Errorf("%d of %d messages were acknowledged, and do not come", len(missing), len(want))
	}
}

// What a client proves to a front by its certificate, over TLS and over WebSocket, holds at the leader.
func TestCertificatesOfClientsBehindAFront(t *testing.T) {
	t.Parallel()
	s := inited(t)
	if got := holdfastAlone(t, "cert", "client", "press-7", "--ca", s.dir); got.code != 0 {
		t.Fatalf("cert client: %+v", got)
	}
	between, ofNode := testserver.FreeAddress(), []string{testserver.FreeAddress(), testserver.FreeAddress()}
	ofFront := []string{testserver.FreeAddress(), testserver.FreeAddress()}
	secured := func(at []string) []string {
		return []string{
			"--listen", "mqtts://" + at[0], "--listen", "wss://" + at[1] + "/mqtt", "--tls-cert", s.file("server.crt"), "--tls-key", s.file("server.key"),
			"--tls-client-ca", s.file("ca.crt"), "--tls-client-auth", "optional",
		}
	}
	begin(t, exec.Command(binary, append([]string{
		"serve", "--node", "a", "--cluster-peers", "a=" + between, "--data", t.TempDir(), "--password-file", s.file("passwords"), "--policy", s.file("policy.yaml"),
	}, secured(ofNode)...)...))
	beginFront(t, []string{between}, secured(ofFront)...)
	for i, scheme := range []string{"mqtts://", "wss://"} {
		as := func(name string, args ...string) result {
			args = append(args, "-n", scheme+ofFront[i]+strings.Repeat("/mqtt", i), "--cafile", s.file("ca.crt"))
			if name != "" {
				args = append(args, "-C", s.file(name+".crt"), "-K", s.file(name+".key"))
			}
			return holdfastAlone(t, args...)
		}
		as("press-7", "set", "press-7/state", "on").want(t, scheme+" its own key", 0, "", "")
		as("press-7", "get", "press-7/state").want(t, scheme+" its own key, read", 0, "on", "")
		as("press-7", "get", "greeting", "-i", "press-7").want(t, scheme+" another one's key", 2, "", "not authorized")
		as("press-7", "get", "press-7/state", "-i", "press-8").want(t, scheme+" under another one's name", 2, "", "not authorized")
		as("", "get", "press-7/state").want(t, scheme+" without a certificate", 2, "", "not authorized")
	}
}

// Behind a balancer that speaks the PROXY protocol, a front gives the leader the addresses that the
// balancer says, and takes no connection without one. Beyond what the process may open, it closes
// connections, and says what to change.
func TestAFrontBehindABalancer(t *testing.T) {
	t.Parallel()
	between, ofNode, at := testserver.FreeAddress(), testserver.FreeAddress(), testserver.FreeAddress()
	node := begin(t, exec.Command(binary, "serve", "--node", "a", "--cluster-peers", "a="+between, "--data", t.TempDir(), "--listen", ofNode))
	front := begin(t, exec.Command("bash", "-c", "ulimit -n 100; exec "+binary+" front --proxy-protocol --max-connections 500 --cluster-peers a="+between+" --listen "+at))
	connect := func(id string) error { // an error: the front closes the connection
		t.Helper()
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		h := proxy.Header{Client: netip.MustParseAddrPort("192.0.2.7:50000"), Listener: -1}
		c := mqtttest.NewClient(t, conn)
		if err := c.WriteErr(append(proxy.Append(nil, h, netip.MustParseAddrPort(at)), c.EncodeConnect(mqtttest.ClientID(id))...)); err != nil {
			return err
		}
		p, err := c.Read(time.Now().Add(mqtttest.Deadline))
		if err == nil && p.Type != mqtt.CONNACK {
			t.Fatalf("client %s gets %v", id, p.Type)
		}
		return err
	}
	if err := connect("behind"); err != nil {
		t.Fatal(err)
	}
	said := func(p *process.Process, want string) {
		t.Helper()
		for end := time.Now().Add(patience); !regexp.MustCompile(want).MatchString(p.Output()); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it does not say %q:\n%s", want, p.Output())
			}
		}
	}
	said(node, `msg="client connected" client=behind remote=192.0.2.7:50000`)
	direct := mqtttest.Dial(t, at)
	direct.SendConnect(mqtttest.ClientID("direct"))
	direct.ExpectClosed()

	said(front, `there can be fewer connections than --max-connections.*raise the limit.*asked_for=500 maximum=50 open_files=100`)
	for i := range 100 {
		if err := connect(fmt.Sprint("many", i)); err != nil {
			if i < 20 {
				t.Errorf("connection %d of those that should fit ends: %v", i, err)
			}
			said(front, `closing new connections: the process has nearly as many files open as it may; raise the limit`)
			return
		}
	}
	t.Error("100 connections are taken")
}
