package server

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
	"github.com/holdfast-mqtt/holdfast/internal/trace/stream"
)

// tracing traces on a server until the test ends, and gives the lines, without times and
// without what varies.
func tracing(t *testing.T, s *Server, f trace.Filter) <-chan string {
	t.Helper()
	f.Rate = trace.MaxRate
	begun, lines, ended := make(chan struct{}), make(chan string, 1000), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ended <- Trace(ctx, s.config.DataDir, stream.Request{Filter: f, For: trace.MaxFor}, func(l stream.Line) error {
			if l.Begun {
				close(begun)
			}
			if l.Line != "" {
				_, line, _ := strings.Cut(l.Line, " ")
				lines <- regexp.MustCompile(` (bytes|maximum-packet-size|request-problem-info|[a-z-]+-maximum|[a-z-]+-available)=\d+|\d+:\d+:StateStore`).ReplaceAllString(line, "")
			}
			return nil
		})
		close(lines)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	select {
	case <-begun:
	case err := <-ended:
		t.Fatal(err)
	}
	return lines
}

func expectLines(t *testing.T, lines <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got, more := <-lines:
			if got != w || !more {
				t.Errorf("got  %q\nwant %q", got, w)
			}
		case <-time.After(mqtttest.Deadline):
			t.Fatalf("no line came, want %q", w)
		}
	}
}

// An operator sees each packet of one client, in both directions, and none of others.
func TestTraceOfAClient(t *testing.T) {
	t.Parallel()
	s := start(t)
	addr := s.Addrs()[0].String()
	lines := tracing(t, s, trace.Filter{Client: "sensor 7", Payload: 4})
	other := mqtttest.Connect(t, addr, mqtttest.ClientID("other"))

	c := mqtttest.Connect(t, addr, mqtttest.ClientID("sensor 7"), mqtttest.Credentials("me", "5ecret"), mqtttest.TopicAliasMaximum(5))
	expectLines(t, lines,
		`"sensor 7" in  CONNECT v5.0 clean-start keep-alive=60 user-name password`,
		`"sensor 7" out CONNACK 0x00 (Success)`)
	c.Subscribe("plant/#", 1)
	expectLines(t, lines,
		`"sensor 7" in  SUBSCRIBE id=1 filter=plant/# qos=1`,
		`"sensor 7" out SUBACK id=1 0x01 (Granted QoS 1)`)
	large := strings.Repeat("L", 20_000)
	for _, payload := range []string{"21.5", "22", large} { // the last one is not copied to the output
		other.Publish(mqtttest.Message{Topic: "plant/7", Payload: payload, QoS: 0})
		if got := c.Receive(); got.Payload != payload {
			t.Fatalf("the client got %v", got)
		}
	}
	expectLines(t, lines,
		`"sensor 7" out PUBLISH qos=0 topic=plant/7 alias=1 payload=4 "21.5"`,
		`"sensor 7" out PUBLISH qos=0 alias=1 topic=plant/7 payload=2 "22"`,
		`"sensor 7" out PUBLISH qos=0 alias=1 topic=plant/7 payload=20000 "LLLL"`)
	c.Publish(mqtttest.Message{Topic: "house", Payload: "a", QoS: 1, PacketID: 100, TopicAlias: 3})
	c.Publish(mqtttest.Message{Payload: "b", QoS: 2, PacketID: 101, TopicAlias: 3})
	expectLines(t, lines,
		`"sensor 7" in  PUBLISH id=100 qos=1 topic=house alias=3 payload=1 "a"`,
		`"sensor 7" out PUBACK id=100 0x10 (No matching subscribers)`,
		`"sensor 7" in  PUBLISH id=101 qos=2 alias=3 topic=house payload=1 "b"`,
		`"sensor 7" out PUBREC id=101 0x10 (No matching subscribers)`,
		`"sensor 7" in  PUBREL id=101`,
		`"sensor 7" out PUBCOMP id=101`)
	c.Write(mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{Topic: []byte("a/#")}))
	c.AwaitDisconnect(mqtt.TopicNameInvalid)
	expectLines(t, lines,
		`"sensor 7" in  PUBLISH qos=0 topic=a/# payload=0`)
	if got := <-lines; !strings.HasPrefix(got, `"sensor 7" out DISCONNECT 0x90 (Topic Name invalid) reason=`) {
		t.Error(got)
	}
	mqtttest.Connect(t, addr, mqtttest.ClientID("sensor 7"), mqtttest.V311()).Disconnect()
	expectLines(t, lines,
		`"sensor 7" in  CONNECT v3.1.1 clean-start keep-alive=60`,
		`"sensor 7" out CONNACK code=0`,
		`"sensor 7" in  DISCONNECT`)
}

// An operator sees each command on the keys that match a pattern.
func TestTraceOfKeys(t *testing.T) {
	t.Parallel()
	s := start(t)
	lines := tracing(t, s, trace.Filter{Key: "plant/*", Payload: 2})
	w := dialWire(t, s, "client", false)
	do := func(args ...string) { w.window(request(nil, "client", 1, stamp(), args...), 1) }
	do("SET", "plant/7", "on")
	do("SET", "house/7", "on")
	do("GET", "plant/7")
	do("SCAN", "plant/*")
	do("SET", "plant/7", "off!", "NX")
	do("SET", "plant/7", "off!", "NX", "XN")
	do("DEL", "plant/7")
	do("GET", "plant/7")
	do("TXN", "IF", "plant/8", "VER", "-", "SET", "plant/8", "value", "SET", "house/8", "value")
	expectLines(t, lines,
		`client SET plant/7 ok version= value=2 "on"`,
		`client GET plant/7 ok version=`,
		`client SET plant/7 missed version= value=4 "of"`,
		`client DEL plant/7 ok version=`,
		`client GET plant/7 missed`,
		`client TXN IF plant/8 ok`,
		`client TXN SET plant/8 ok version= value=5 "va"`)
}
