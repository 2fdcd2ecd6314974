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

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
)

const patience = time.Minute

// connected is a link, and the server's end of its connection after CONNECT and
// SUBSCRIBE. What comes by other topics goes to others.
func connected(t *testing.T) (l *Link[string], server net.Conn, others chan string) {
	t.Helper()
	ours, server := net.Pipe()
	accepted := make(chan error, 1)
	go func() { accepted <- accept(server) }()
	others = make(chan string, 10)
	fail := func(code byte, reason string) error { return fmt.Errorf("code 0x%02X %s", code, reason) }
	l, err := Connect(t.Context(), &conn.Config{
		ClientID: "c", Timeout: patience, KeepAlive: time.Minute, Logger: slog.New(slog.DiscardHandler),
		Dial:   func(context.Context) (net.Conn, error) { return ours, nil },
		Errors: conn.Errors{Refused: fail, Rejected: fail, Disconnected: fail},
	}, "answers",
		func(p *paho.Publish) (string, error) {
			if len(p.Payload) == 0 {
				return "", errors.New("an empty answer")
			}
			return string(p.Payload), nil
		},
		func(p *paho.Publish) { others <- p.Topic })
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close(); <-l.Done() })
	return l, server, others
}

// next reads the next packet that is no ping: when paho pings is its own affair.
func next(server net.Conn) (*packets.ControlPacket, error) {
	for {
		p, err := packets.ReadPacket(server)
		if err != nil || p.Type != packets.PINGREQ {
			return p, err
		}
	}
}

// accept is the server's part of a connection up to its first subscription.
func accept(server net.Conn) error {
	if _, err := next(server); err != nil {
		return err
	}
	ack := packets.NewControlPacket(packets.CONNACK)
	if _, err := ack.WriteTo(server); err != nil {
		return err
	}
	p, err := next(server)
	if err != nil {
		return err
	}
	suback := packets.NewControlPacket(packets.SUBACK)
	suback.Content.(*packets.Suback).PacketID = p.Content.(*packets.Subscribe).PacketID
	suback.Content.(*packets.Suback).Reasons = []byte{1}
	_, err = suback.WriteTo(server)
	return err
}

// request starts a request, and returns it as the server got it.
func request(t *testing.T, l *Link[string], server net.Conn) (*Call[string], *packets.Publish) {
	t.Helper()
	call, err := l.Start(t.Context(), func() *paho.Publish {
		return &paho.Publish{QoS: 1, Topic: "requests", Properties: &paho.PublishProperties{}}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := next(server)
	if err != nil {
		t.Fatal(err)
	}
	return call, p.Content.(*packets.Publish)
}

func send(t *testing.T, server net.Conn, topic string, correlation []byte, payload string) {
	t.Helper()
	p := &packets.Publish{Topic: topic, Payload: []byte(payload), Properties: &packets.Properties{CorrelationData: correlation}}
	if _, err := p.WriteTo(server); err != nil {
		t.Fatal(err)
	}
}

func TestAnswersFindTheirRequests(t *testing.T) {
	t.Parallel()
	l, server, others := connected(t)
	first, firstSeen := request(t, l, server)
	second, secondSeen := request(t, l, server)
	third, thirdSeen := request(t, l, server)
	if firstSeen.Properties.ResponseTopic != "answers" {
		t.Errorf("the request has the response topic %q", firstSeen.Properties.ResponseTopic)
	}
	// Given answers in another order than the requests, and messages that answer nothing,
	send(t, server, "answers", secondSeen.Properties.CorrelationData, "second")
	send(t, server, "answers", secondSeen.Properties.CorrelationData, "second again")
	send(t, server, "answers", []byte("of another process"), "nothing")
	send(t, server, "news", nil, "")
	send(t, server, "answers", thirdSeen.Properties.CorrelationData, "")
	send(t, server, "answers", firstSeen.Properties.CorrelationData, "first")
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
	ack := packets.Puback{PacketID: p.PacketID, ReasonCode: 0x97, Properties: &packets.Properties{}}
	if _, err := ack.WriteTo(server); err != nil {
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
	send(t, server, "answers", p.Properties.CorrelationData, "late")
	send(t, server, "news", nil, "") // the late answer was read before
	<-others
	select {
	case a := <-call.done:
		t.Errorf("it got %+v", a)
	default:
	}
}
