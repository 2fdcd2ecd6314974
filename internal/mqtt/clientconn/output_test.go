package clientconn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

func TestPacketsOfManyGoroutinesAreWhole(t *testing.T) {
	t.Parallel()
	c, s := connect(t, Config{}, mqtt.Connect{}, mqtt.Connack{})
	const writers, size = 8, 100
	for g := range writers {
		go func() {
			_ = c.SendQoS0(context.Background(), func(dst []byte) []byte {
				return mqtt.AppendPublish(dst, mqtt.V5, &mqtt.Publish{Topic: []byte("t"), Payload: bytes.Repeat([]byte{byte('a' + g)}, size)})
			})
		}()
	}
	for range writers {
		payload := string(s.publish().Payload)
		if len(payload) != size || strings.Trim(payload, payload[:1]) != "" {
			t.Errorf("a packet of several writers: %q", payload)
		}
	}
}

// A socket that takes nothing makes callers wait, up to their contexts' ends, and only when
// there is much to send.
func TestSocketThatStalls(t *testing.T) {
	t.Parallel()
	c, s := connect(t, Config{}, mqtt.Connect{}, mqtt.Connack{})
	fill := func(ctx context.Context, size int) error {
		return c.SendQoS0(ctx, func(dst []byte) []byte { return append(dst, make([]byte, size)...) })
	}
	// Given a peer that reads nothing, and so a writer that waits for it, …
	if err := fill(within(t), 1); err != nil {
		t.Fatal(err)
	}
	for c.out.count() == 0 {
		time.Sleep(time.Millisecond)
	}
	// … a caller does not wait, …
	if err := fill(within(t), roomBytes); err != nil {
		t.Fatal(err)
	}
	// … but the one after it does, until its context ends.
	ctx, cancel := context.WithTimeout(within(t), 10*time.Millisecond)
	defer cancel()
	if err := fill(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want DeadlineExceeded", err)
	}
	// When the peer reads again, there is room.
	go func() { _, _ = io.Copy(io.Discard, s.Conn.Conn) }()
	if err := fill(within(t), 1); err != nil {
		t.Error(err)
	}
}

// A server that sends messages and reads none of their acknowledgements is disconnected.
func TestUnreadAcknowledgements(t *testing.T) {
	t.Parallel()
	for many, want := range map[int]error{maxAcks: nil, maxAcks + 1: errUnreadAcks} {
		o := newOutput(nil) // without a writer
		var err error
		for range many {
			if err == nil {
				err = o.acknowledge(mqtt.PUBACK, 1, 0)
			}
		}
		if !errors.Is(err, want) {
			t.Errorf("%d of them: %v, want %v", many, err, want)
		}
	}
	var c *Conn
	got := make(chan uint16, 1)
	cfg := acknowledging(&c, got)
	c, s := connect(t, cfg, mqtt.Connect{}, mqtt.Connack{})
	c.out.mu.Lock()
	c.out.acks = maxAcks
	c.out.mu.Unlock()
	go s.Write(delivery(1, 1))
	<-got
	<-c.Done()
	if !errors.Is(c.Err(), errUnreadAcks) {
		t.Errorf("it ended with %v", c.Err())
	}
}

// A write that fails does not hide why the server has closed the connection.
func TestDisconnectThatIsReadAfterAFailedWrite(t *testing.T) {
	t.Parallel()
	c, s := dial(t, Config{})
	c.nc = &deaf{Conn: c.nc, failed: make(chan struct{})}
	c.out.nc = c.nc
	go func() {
		_, _ = s.Conn.Next(time.Now().Add(patience))
		_, _ = s.Write(mqtt.AppendConnack(nil, mqtt.V5, &mqtt.Connack{}))
	}()
	if _, err := c.Connect(within(t), &mqtt.Connect{}); err != nil {
		t.Fatal(err)
	}
	o := publish(t, c, 1)
	<-c.nc.(*deaf).failed
	s.send(mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.ServerShuttingDown}))
	<-c.Done()
	var said *ReasonError
	if !errors.As(c.Err(), &said) || said.Code != mqtt.ServerShuttingDown {
		t.Errorf("it ended with %v", c.Err())
	}
	<-o
}

// deaf is a connection whose writes fail after the CONNECT.
type deaf struct {
	net.Conn
	written bool
	failed  chan struct{}
}

func (d *deaf) Write(p []byte) (int, error) {
	if d.written {
		close(d.failed)
		return 0, io.ErrClosedPipe
	}
	d.written = true
	return d.Conn.Write(p)
}

// SetReadDeadline does nothing: the DISCONNECT comes when the test sends it.
func (d *deaf) SetReadDeadline(time.Time) error { return nil }

// Receiving a message at QoS 1 and acknowledging it allocates nothing, and neither does
// sending one and receiving its acknowledgement.
func TestMessagesAllocateNothing(t *testing.T) {
	var c *Conn
	c = New(nil, Config{Received: func(p *mqtt.Publish) { c.Acknowledge(p.QoS, p.PacketID) }})
	c.receiveMaximum = 1
	c.window.open(1, nil)
	close(c.resumed)
	received, acknowledged := delivery(1, 7), ack(mqtt.PUBACK, 1, 0)
	decode := func(b []byte) {
		if err := c.packet.Decode(mqtt.V5, frame(b)); err != nil {
			t.Error(err)
		}
		if err := c.handle(); err != nil {
			t.Error(err)
		}
	}
	// The connection has neither reader nor writer: this goroutine has their parts.
	if n := testing.AllocsPerRun(100, func() {
		decode(received)
		c.out.pending, c.out.acks = c.out.pending[:0], 0
	}); n != 0 {
		t.Errorf("receiving: %v allocations", n)
	}
	var pending Pending = ignored{}
	encode := message(1)
	if n := testing.AllocsPerRun(100, func() {
		c.window.next = 0
		if err := c.Send(context.Background(), 1, pending, encode); err != nil {
			t.Error(err)
		}
		decode(acknowledged)
		c.out.pending = c.out.pending[:0]
	}); n != 0 {
		t.Errorf("sending: %v allocations", n)
	}
}

// ignored is a Pending.
type ignored struct{}

func (ignored) Acknowledged(Outcome) {}
func (ignored) Lost()                {}
