package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest/wire"
)

const patience = time.Minute

// connected is a link, and the server's end of its connection after CONNECT and
// SUBSCRIBE. What comes by other topics goes to others.
func connected(t *testing.T) (l *Link[string], server *wire.Conn, others chan string) {
	t.Helper()
	ours, theirs := net.Pipe()
	server = wire.New(theirs, 1<<20)
	accepted := make(chan error, 1)
	go func() { accepted <- accept(server) }()
	others = make(chan string, 10)
	fail := func(code byte, reason string) error { return fmt.Errorf("code 0x%02X %s", code, reason) }
	l, err := New(t.Context(), &conn.Config{
		ClientID: "c", Timeout: patience, KeepAlive: time.Hour, Logger: slog.New(slog.DiscardHandler),
		Servers: dial.By("", func(context.Context) (net.Conn, error) { return ours, nil }),
		Errors:  conn.Errors{Refused: fail, Rejected: fail, Disconnected: fail},
	}, "answers",
		func(p *mqtt.Publish) (string, error) {
			if len(p.Payload) == 0 {
				return "", errors.New("an empty answer")
			}
			return string(p.Payload), nil
		},
		func(p *mqtt.Publish) bool { others <- string(p.Topic); return false })
	if err == nil {
		_, err = l.Handshake(t.Context(), &mqtt.Connect{CleanStart: true})
	}
	if err == nil {
		err = l.Listen(t.Context())
	}
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close(); <-l.Done() })
	return l, server, others
}

// accept is the server's part of a connection up to its first subscription.
func accept(server *wire.Conn) error {
	if _, err := server.Next(time.Time{}); err != nil {
		return err
	}
	if _, err := server.Write(mqtt.AppendConnack(nil, mqtt.V5, &mqtt.Connack{})); err != nil {
		return err
	}
	f, err := server.Next(time.Time{})
	if err != nil {
		return err
	}
	var p mqtt.Subscribe
	if err := p.Decode(mqtt.V5, f.Body); err != nil {
		return err
	}
	_, err = server.Write(mqtt.AppendSuback(nil, mqtt.V5, p.PacketID, []mqtt.ReasonCode{mqtt.GrantedQoS1}, ""))
	return err
}

// request starts a request, and returns it as the server got it.
func request(t *testing.T, l *Link[string], server *wire.Conn) (*Call[string], *mqtt.Publish) {
	t.Helper()
	call, err := l.Start(t.Context(), func(dst []byte, packetID uint16, correlation []byte) []byte {
		return mqtt.AppendPublish(dst, mqtt.V5, &mqtt.Publish{
			QoS: 1, PacketID: packetID, Topic: []byte("requests"),
			Props: mqtt.PublishProps{CorrelationData: correlation, HasCorrelationData: true},
		})
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := server.Next(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	p := new(mqtt.Publish)
	if err := p.Decode(mqtt.V5, f.Header, f.Clone().Body); err != nil {
		t.Fatal(err)
	}
	return call, p
}

func send(t *testing.T, server *wire.Conn, topic string, correlation []byte, payload string) {
	t.Helper()
	p := mqtt.Publish{Topic: []byte(topic), Payload: []byte(payload), Props: mqtt.PublishProps{CorrelationData: correlation, HasCorrelationData: correlation != nil}}
	if _, err := server.Write(mqtt.AppendPublish(nil, mqtt.V5, &p)); err != nil {
		t.Fatal(err)
	}
}

func TestAnswersFindTheirRequests(t *testing.T) {
	t.Parallel()
	l, server, others := connected(t)
	first, firstSeen := request(t, l, server)
	second, secondSeen := request(t, l, server)
	third, thirdSeen := request(t, l, server)
	// Given answers in another order than the requests, and messages that answer nothing,
	send(t, server, "answers", secondSeen.Props.CorrelationData, "second")
	send(t, server, "answers", secondSeen.Props.CorrelationData, "second again")
	send(t, server, "answers", []byte("of another process"), "nothing")
	send(t, server, "news", nil, "")
	send(t, server, "answers", thirdSeen.Props.CorrelationData, "")
	send(t, server, "answers", firstSeen.Props.CorrelationData, "first")
	// then each request has its own.
	for want, call := range map[string]*Call[string]{"first": first, "second": second} {
		if got, err := l.Result(t.Context(), call); got != want || err != nil {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	if _, err := l.Result(t.Context(), third); err == nil || err.Error() != "an empty answer" {
		t.Errorf("an answer that cannot be decoded: %v", err)
	}
	if got := <-others; got != "news" {
		t.Errorf("the other message came by %q", got)
	}
}

func TestARefusedRequest(t *testing.T) {
	t.Parallel()
	l, server, _ := connected(t)
	call, p := request(t, l, server)
	if _, err := server.Write(mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBACK, p.PacketID, mqtt.QuotaExceeded, "")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Result(t.Context(), call); err == nil || err.Error() != "code 0x97 " {
		t.Errorf("got %v, want the PUBACK's code", err)
	}
}

// The end of a connection fails the requests that wait, and later ones before they are sent.
func TestTheEndOfALink(t *testing.T) {
	t.Parallel()
	l, server, _ := connected(t)
	call, _ := request(t, l, server)
	l.Kill(io.ErrUnexpectedEOF)
	<-l.Dead()
	if _, err := l.Result(t.Context(), call); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a request under way: %v", err)
	}
	if _, err := l.Start(t.Context(), nil, nil); !errors.Is(err, ErrUnsent) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a later request: %v", err)
	}
}

// A caller that gives up gets its context's error, and its answer is dropped.
func TestACallerThatGivesUp(t *testing.T) {
	t.Parallel()
	l, server, others := connected(t)
	call, p := request(t, l, server)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Result(ctx, call); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	send(t, server, "answers", p.Props.CorrelationData, "late")
	send(t, server, "news", nil, "") // the late answer was read before
	<-others
	select {
	case a := <-call.done:
		t.Errorf("it got %+v", a)
	default:
	}
}
