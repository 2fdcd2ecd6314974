package conn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/session"
)

// pipeWire is a wire and the other end of its connection. Nothing is taken off
// a pipe that isn't read, so a test decides when the socket stalls.
func pipeWire(t *testing.T) (*wire, net.Conn) {
	t.Helper()
	ours, theirs := net.Pipe()
	w := newWire(ours)
	t.Cleanup(func() { _ = theirs.Close(); _ = w.Close() })
	return w, theirs
}

func TestWireWritesPacketsWhole(t *testing.T) {
	t.Parallel()
	w, peer := pipeWire(t)
	const writers, packetBytes = 8, 100
	for g := range writers {
		go func() {
			p := &packets.Publish{Topic: "t", Payload: bytes.Repeat([]byte{byte('a' + g)}, packetBytes)}
			_, _ = p.WriteTo(w)
		}()
	}
	for range writers {
		p, err := packets.ReadPacket(peer)
		if err != nil {
			t.Fatal(err)
		}
		payload := p.Content.(*packets.Publish).Payload
		if len(payload) != packetBytes || strings.Trim(string(payload), string(payload[:1])) != "" {
			t.Errorf("a packet of several writers: %q", payload)
		}
	}
}

func TestWireDoesNotWaitForTheSocket(t *testing.T) {
	t.Parallel()
	w, peer := pipeWire(t)
	fill := func(bytes int) {
		w.Lock()
		_, _ = w.Write(make([]byte, bytes))
		w.Unlock()
	}
	// Given a peer that reads nothing, and so a writer that is stuck …
	fill(1)
	for stuck := false; !stuck; {
		w.Lock()
		stuck = len(w.out) == 0
		w.Unlock()
	}
	// … writing goes on all the same, …
	fill(wireRoomBytes)
	// … but the caller that asks first waits, until its context ends.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := w.waitRoom(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("waitRoom: %v, want DeadlineExceeded", err)
	}
	// When the peer reads again, there is room.
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	if err := w.waitRoom(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestWireCloseWritesWhatIsLeft(t *testing.T) {
	t.Parallel()
	w, peer := pipeWire(t)
	w.Lock()
	_, _ = w.Write([]byte("farewell"))
	w.Unlock()
	closed := make(chan error, 1)
	go func() { closed <- w.Close() }()
	if got, err := io.ReadAll(peer); string(got) != "farewell" || err != nil {
		t.Errorf("the peer read %q, %v", got, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestWireRemembersWhyItFailed(t *testing.T) {
	t.Parallel()
	w, peer := pipeWire(t)
	_ = peer.Close()
	if _, err := w.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("Read: %v", err)
	}
	_ = w.Close()
	if !errors.Is(w.cause(), io.EOF) {
		t.Errorf("cause %v, want EOF", w.cause())
	}
	w.Lock()
	defer w.Unlock()
	if _, err := w.Write(nil); err == nil {
		t.Error("a Write after the end succeeded")
	}
}

// rejected is the error of a PUBACK.
type rejected struct {
	code   byte
	reason string
}

func (r *rejected) Error() string { return r.reason }

// openWindow is a window on a connection whose server takes so many requests.
func openWindow(t *testing.T, receiveMaximum uint16, refused func([]byte, error)) *window {
	t.Helper()
	w := newWindow(func(code byte, reason string) error { return &rejected{code, reason} }, refused)
	ack := &packets.Connack{Properties: &packets.Properties{ReceiveMaximum: &receiveMaximum}}
	if err := w.ConAckReceived(io.Discard, nil, ack); err != nil {
		t.Fatal(err)
	}
	return w
}

func requestPacket(correlation string) *packets.Publish {
	return &packets.Publish{QoS: 1, Properties: &packets.Properties{CorrelationData: []byte(correlation)}}
}

func puback(id uint16, code byte) *packets.ControlPacket {
	p := packets.NewControlPacket(packets.PUBACK)
	p.Content.(*packets.Puback).PacketID = id
	p.Content.(*packets.Puback).ReasonCode = code
	return p
}

func TestWindowKeepsToReceiveMaximum(t *testing.T) {
	t.Parallel()
	w := openWindow(t, 2, nil)
	var last *packets.Publish
	for range 2 {
		last = requestPacket("c")
		if err := w.AddToSession(context.Background(), last, make(chan packets.ControlPacket, 1)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := w.AddToSession(ctx, requestPacket("c"), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the third of two: %v, want DeadlineExceeded", err)
	}
	// An acknowledgement makes room; one that belongs to nothing does not.
	_ = w.PacketReceived(puback(999, 0), nil)
	_ = w.PacketReceived(puback(last.PacketID, 0), nil)
	if err := w.AddToSession(context.Background(), requestPacket("c"), make(chan packets.ControlPacket, 1)); err != nil {
		t.Error(err)
	}
	if len(w.quota) != 2 {
		t.Errorf("%d slots in use, want 2", len(w.quota))
	}
}

func TestWindowGivesDistinctPacketIDs(t *testing.T) {
	t.Parallel()
	w := openWindow(t, 65535, nil)
	w.next = 65533 // the IDs are about to start over, and 0 is none [MQTT-2.2.1-3]
	seen := make(map[uint16]bool)
	for range 5 {
		p := requestPacket("c")
		if err := w.AddToSession(context.Background(), p, make(chan packets.ControlPacket, 1)); err != nil {
			t.Fatal(err)
		}
		if p.PacketID == 0 || seen[p.PacketID] {
			t.Errorf("packet ID %d", p.PacketID)
		}
		seen[p.PacketID] = true
	}
}

func TestWindowTellsOfRefusals(t *testing.T) {
	t.Parallel()
	var correlation string
	var refusal error
	w := openWindow(t, 2, func(c []byte, err error) { correlation, refusal = string(c), err })
	p := requestPacket("mine")
	acked := make(chan packets.ControlPacket, 1)
	if err := w.AddToSession(context.Background(), p, acked); err != nil {
		t.Fatal(err)
	}
	_ = w.PacketReceived(puback(p.PacketID, 0x87), nil)
	var r *rejected
	if correlation != "mine" || !errors.As(refusal, &r) || r.code != 0x87 {
		t.Errorf("told %q, %v", correlation, refusal)
	}
	<-acked
}

func TestWindowWhenTheConnectionIsLost(t *testing.T) {
	t.Parallel()
	w := openWindow(t, 1, nil)
	acked := make(chan packets.ControlPacket, 1)
	if err := w.AddToSession(context.Background(), requestPacket("c"), acked); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- w.AddToSession(context.Background(), requestPacket("c"), nil) }()
	disconnect := &packets.Disconnect{ReasonCode: 0x8B}
	_ = w.ConnectionLost(disconnect)
	_ = w.ConnectionLost(nil)
	if p := <-acked; p.Type != 0 {
		t.Errorf("the caller that waited for an acknowledgement got %v", p)
	}
	if err := <-waiting; !errors.Is(err, session.ErrNoConnection) {
		t.Errorf("the caller that waited for a slot got %v", err)
	}
	if err := w.Ack(requestPacket("c")); !errors.Is(err, session.ErrNoConnection) {
		t.Errorf("Ack: %v", err)
	}
	if w.disconnected() != disconnect {
		t.Error("the server's DISCONNECT is forgotten")
	}
}
