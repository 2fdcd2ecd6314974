package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session"

	"holdfast/hlc"
	"holdfast/internal/protocol"
	"holdfast/internal/statestore"
)

func TestSetCommand(t *testing.T) {
	t.Parallel()
	version := hlc.Timestamp{Wall: 5, Counter: 6, Node: "n"}
	for _, test := range []struct {
		name string
		opts []SetOption
		want string
	}{
		{"plain", nil, "SET k v"},
		{"NX", []SetOption{NX()}, "SET k v NX"},
		{"NEX comes first, whatever the order", []SetOption{Expiry(time.Second), NEX()}, "SET k v NEX PX 1000"},
		{"NEX with an operand", []SetOption{IfVersion(version), NEXCompare([]byte("o")), Expiry(time.Second)}, "SET k v NEX o PX 1000 VER 5:6:n"},
		{"absent", []SetOption{IfAbsent()}, "SET k v VER -"},
		{"the zero version", []SetOption{IfVersion(hlc.Timestamp{})}, "SET k v VER -"},
		{"expiry rounds up", []SetOption{Expiry(time.Nanosecond)}, "SET k v PX 1"},
		{"expiry is exact", []SetOption{Expiry(1500 * time.Millisecond)}, "SET k v PX 1500"},
	} {
		var a setArgs
		for _, o := range test.opts {
			o.applySet(&a)
		}
		if got := string(bytes.Join(a.command("k", []byte("v")), []byte(" "))); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// Each text of the protocol, in both wire forms, is its own sentinel.
func TestEveryErrorTextHasItsSentinel(t *testing.T) {
	t.Parallel()
	for fault, want := range map[statestore.Fault]error{
		statestore.TimestampAhead:     ErrTimestampAhead,
		statestore.TokenRequired:      ErrTokenRequired,
		statestore.TokenAhead:         ErrTokenAhead,
		statestore.TokenTooLow:        ErrTokenTooLow,
		statestore.QuotaExceeded:      ErrQuotaExceeded,
		statestore.Syntax:             ErrSyntax,
		statestore.NotAuthorized:      ErrNotAuthorized,
		statestore.UnknownCommand:     ErrUnknownCommand,
		statestore.WrongArgumentCount: ErrWrongArgumentCount,
		statestore.MissingTimestamp:   ErrMissingTimestamp,
		statestore.MalformedTimestamp: ErrMalformedTimestamp,
		statestore.EmptyKey:           ErrEmptyKey,
		statestore.MalformedToken:     ErrMalformedToken,
		statestore.Unreadable:         ErrUnreadable,
	} {
		for _, documented := range []bool{false, true} {
			r, err := protocol.ParseReply([]byte("-ERR " + fault.Text(documented) + "\r\n"))
			if err != nil {
				t.Fatal(err)
			}
			if got := toStoreError(&r); !errors.Is(got, want) {
				t.Errorf("%q: %v, want %v", fault.Text(documented), got, want)
			}
		}
	}
	r, _ := protocol.ParseReply([]byte("-ERR something new\r\n"))
	if got := toStoreError(&r); got.Error() != "something new" || errors.Is(got, ErrSyntax) {
		t.Errorf("a text that we don't know: %v", got)
	}
}

func TestRejectedErrorIsItsSentinel(t *testing.T) {
	t.Parallel()
	err := error(&Error{Op: "get", Key: "k", Err: &RejectedError{Code: 0x87, Reason: "no"}})
	if !errors.Is(err, ErrNotAuthorized) || errors.Is(err, ErrQuotaExceeded) {
		t.Errorf("0x87: %v", err)
	}
	if want := `get "k": the server rejected the request: not authorized (0x87): no`; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if !errors.Is(&RejectedError{Code: 0x97}, ErrQuotaExceeded) {
		t.Error("0x97 is not ErrQuotaExceeded")
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		address string
		tls     bool
		ok      bool
	}{
		{"localhost", false, true},
		{"localhost:1883", true, true},
		{"[::1]:1883", false, true},
		{"mqtt://h", false, true},
		{"mqtts://h:8883", false, true},
		{"ws://h/mqtt", false, true},
		{"wss://h:443/mqtt", true, true},
		{"", false, false},
		{":1883", false, false},
		{"ftp://h", false, false},
		{"mqtt://h:port", false, false},
	} {
		var config *tls.Config
		if test.tls {
			config = &tls.Config{}
		}
		if _, err := dialer(test.address, config); (err == nil) != test.ok || err != nil && !errors.Is(err, ErrInvalidOption) {
			t.Errorf("%q: %v", test.address, err)
		}
	}
}

func TestConfigChecks(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Option{
		"wildcard in the ID": WithClientID("a+b"),
		"NUL in the ID":      WithClientID("a\x00"),
		"ID not UTF-8":       WithClientID("\xff"),
		"no timeout":         WithTimeout(0),
		"keep-alive":         WithKeepAlive(time.Millisecond),
		"backoff":            WithBackoff(2, 1),
	} {
		if _, err := New("localhost", o); !errors.Is(err, ErrInvalidOption) {
			t.Errorf("%s: %v, want ErrInvalidOption", name, err)
		}
	}
	if got := nodeID("a:b"); got != "a-b" {
		t.Errorf("node ID %q: a colon would make the timestamp malformed", got)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]struct {
		keys  int
		token string
		ok    bool
	}{
		"*1\r\n*0\r\n":                         {0, "", true},
		"*1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n":   {2, "", true},
		"*2\r\n*1\r\n$1\r\na\r\n$3\r\ntok\r\n": {1, "tok", true},
		"*2\r\n*0\r\n$3\r\ntok\r\n":            {0, "tok", true},
		"*0\r\n":                               {},
		"*1\r\n$1\r\na\r\n":                    {},
		"*1\r\n*1\r\n:1\r\n":                   {},
		"*2\r\n*0\r\n:1\r\n":                   {},
		"*3\r\n*0\r\n$1\r\na\r\n$1\r\nb\r\n":   {},
		"+OK\r\n":                              {},
	} {
		r, err := protocol.ParseReply([]byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		keys, token, ok := page(&reply{Response: r})
		if len(keys) != want.keys || string(token) != want.token || ok != want.ok {
			t.Errorf("%q: %d keys, token %q, %v; want %+v", payload, len(keys), token, ok, want)
		}
	}
}

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
	// … but whoever asks first is told to wait, for as long as he wants.
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

// openWindow is a window on a connection whose server takes so many requests.
func openWindow(t *testing.T, receiveMaximum uint16, refused func([]byte, error)) *window {
	t.Helper()
	w := newWindow(refused)
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
	if correlation != "mine" || !errors.Is(refusal, ErrNotAuthorized) {
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
	farewell := &packets.Disconnect{ReasonCode: 0x8B}
	_ = w.ConnectionLost(farewell)
	_ = w.ConnectionLost(nil)
	if p := <-acked; p.Type != 0 {
		t.Errorf("whoever waited for an acknowledgement got %v", p)
	}
	if err := <-waiting; !errors.Is(err, session.ErrNoConnection) {
		t.Errorf("whoever waited for a slot got %v", err)
	}
	if err := w.Ack(requestPacket("c")); !errors.Is(err, session.ErrNoConnection) {
		t.Errorf("Ack: %v", err)
	}
	if w.farewell() != farewell {
		t.Error("the server's farewell is forgotten")
	}
}

// What the watchers are told, for each order in which a server's words can
// come after a reconnect. Version n stands for the n-th change.
func TestWhatWatchersAreTold(t *testing.T) {
	t.Parallel()
	at := func(n uint64) hlc.Timestamp { return hlc.Timestamp{Wall: n, Counter: 1, Node: "s"} }
	set := func(n uint64) func(*watches, *link, *registration) {
		return func(s *watches, l *link, _ *registration) {
			s.notified(l, notification{key: "k", value: []byte("v"), version: at(n)})
		}
	}
	deleted := func(n uint64) func(*watches, *link, *registration) {
		return func(s *watches, l *link, _ *registration) {
			s.notified(l, notification{key: "k", deleted: true, version: at(n)})
		}
	}
	hit := func(n uint64) func(*watches, *link, *registration) {
		return func(s *watches, l *link, reg *registration) {
			s.read(l, reg, &reply{Response: protocol.Response{Kind: protocol.Blob, Blob: []byte("v")}, version: at(n)})
		}
	}
	miss := func(s *watches, l *link, reg *registration) {
		s.read(l, reg, &reply{Response: protocol.Response{Kind: protocol.Nil}})
	}
	type words = []func(*watches, *link, *registration)
	for _, test := range []struct {
		name  string
		known uint64 // the version that the watchers know; 0: they know that there is no key
		first bool   // or they know nothing: this is the first registration
		words words
		want  string
	}{
		{"first: the key as it is", 0, true, words{hit(1)}, ""},
		{"first: no key", 0, true, words{miss}, ""},
		{"first: a change after the read", 0, true, words{hit(1), set(2)}, "set 2"},
		{"first: a change that the read saw", 0, true, words{hit(1), set(1)}, ""},
		{"first: a change before the read", 0, true, words{set(1), hit(1)}, "set 1"},
		{"nothing happened", 1, false, words{hit(1), set(2)}, "set 2"},
		{"changed", 1, false, words{hit(3), set(4)}, "set 3 gap, set 4"},
		{"changed, and told late", 1, false, words{hit(3), set(2), set(3), set(4)}, "set 3 gap, set 4"},
		{"changed while registering", 1, false, words{set(4), hit(3)}, "set 4 gap"},
		{"deleted", 1, false, words{miss, set(4)}, "deleted gap, set 4"},
		{"deleted, and told late", 1, false, words{miss, deleted(3), set(4)}, "deleted gap, set 4"},
		{"deleted while registering", 1, false, words{deleted(3), miss}, "deleted 3 gap"},
		{"deleted and set while registering", 1, false, words{deleted(3), set(4), miss}, "deleted 3 gap, set 4"},
		{"set", 0, false, words{hit(3)}, "set 3 gap"},
		{"still no key", 0, false, words{miss, set(4)}, "set 4"},
		{"a redelivery", 1, false, words{hit(1), set(2), set(2), set(1)}, "set 2"},
	} {
		s, l := newWatches(nil), &link{}
		w := &Watch{events: make(chan Event, 10)}
		reg := &registration{key: "k", watchers: map[*Watch]struct{}{w: {}}, asked: l, known: !test.first, unsure: !test.first}
		if test.known > 0 {
			reg.present, reg.version = true, at(test.known)
		}
		s.regs["k"] = reg
		for _, word := range test.words {
			word(s, l, reg)
		}
		if got := told(w); got != test.want {
			t.Errorf("%s: told %q, want %q", test.name, got, test.want)
		}
	}
}

func told(w *Watch) string {
	close(w.events)
	var events []string
	for e := range w.events {
		text := e.Kind.String()
		if !e.Version.IsZero() {
			text += " " + strings.Split(e.Version.String(), ":")[0]
		}
		if e.Gap {
			text += " gap"
		}
		events = append(events, text)
	}
	return strings.Join(events, ", ")
}

// What comes on a connection that the registration has left is not for it.
func TestNotificationsOfAnEarlierConnection(t *testing.T) {
	t.Parallel()
	s, now, earlier := newWatches(nil), &link{}, &link{}
	w := &Watch{events: make(chan Event, 1)}
	s.regs["k"] = &registration{key: "k", watchers: map[*Watch]struct{}{w: {}}, asked: now}
	s.notified(earlier, notification{key: "k"})
	s.notified(now, notification{key: "another"})
	if len(w.events) != 0 {
		t.Error("it was told")
	}
}

// Answers that are not in the protocol are errors, and of their own kind.
func TestUnreadableAnswers(t *testing.T) {
	t.Parallel()
	cfg, err := newConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{pipe: &pipe{cfg: cfg}}
	for name, test := range map[string]struct {
		payload string
		user    paho.UserProperties
		check   func(error) bool
	}{
		"not RESP": {"hello", nil, func(err error) bool { return errors.Is(err, ErrUnexpectedReply) }},
		"empty":    {"", nil, func(err error) bool { return errors.Is(err, ErrUnexpectedReply) }},
		"status 500": {"", paho.UserProperties{{Key: "__stat", Value: "500"}, {Key: "__stMsg", Value: "broken"}}, func(err error) bool {
			var e *StatusError
			return errors.As(err, &e) && e.Status == "500" && e.Message == "broken"
		}},
	} {
		p := &paho.Publish{Payload: []byte(test.payload), Properties: &paho.PublishProperties{User: test.user}}
		if r := l.parseReply(p); !test.check(r.err) || !isRefusal(r.err) {
			t.Errorf("%s: %v", name, r.err)
		}
	}
	if _, ok := l.parseNotification(&paho.Publish{Topic: "some/topic"}); ok {
		t.Error("any topic is taken for a notification")
	}
}
