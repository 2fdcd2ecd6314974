package transport

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// node is one of the nodes of a test, which all listen on this machine.
type node struct {
	*Transport
	port     *port.Port
	received chan *raftpb.Message
	log      *logs.Text
}

// address is one that no other test uses, and no connection of another program.
func address(t *testing.T) string {
	t.Helper()
	address, err := process.UnusedAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func start(t *testing.T, address string, config *tls.Config, o Options) *node {
	t.Helper()
	n := &node{received: make(chan *raftpb.Message, 100), log: &logs.Text{}}
	o.Logger = slog.New(slog.NewTextHandler(n.log, nil))
	if o.Receive == nil {
		o.Receive = func(m *raftpb.Message) { n.received <- m }
	}
	var err error
	if n.port, err = port.Listen(port.Options{Address: address, TLS: config, Logger: o.Logger}); err != nil {
		t.Fatal(err)
	}
	o.Port = n.port
	if n.Transport, err = New(o); err != nil {
		t.Fatal(err)
	}
	n.port.Complete()
	n.port.Serve()
	t.Cleanup(n.end)
	return n
}

// end ends a node, also a second time.
func (n *node) end() {
	n.Close()
	_ = n.port.Close()
}

// pair starts nodes 1 and 2.
func pair(t *testing.T, config *tls.Config) (a, b *node) {
	t.Helper()
	peers := map[uint64]string{1: address(t), 2: address(t)}
	for id, n := range map[uint64]**node{1: &a, 2: &b} {
		*n = start(t, peers[id], config, Options{Cluster: 5, ID: id, Peers: peers})
	}
	return a, b
}

// message is one from node 1 to node 2.
func message(index uint64, data []byte) *raftpb.Message {
	from, to := uint64(1), uint64(2)
	return &raftpb.Message{Type: raftpb.MsgApp.Enum(), From: &from, To: &to, Index: &index, Entries: []*raftpb.Entry{{Index: &index, Data: data}}}
}

// sendUntilReceived sends a message again and again, as the consensus does: one that finds
// no connection is lost.
func sendUntilReceived(t *testing.T, from, to *node, m *raftpb.Message) *raftpb.Message {
	t.Helper()
	for end := time.After(patience); ; {
		from.Send([]*raftpb.Message{m})
		select {
		case got := <-to.received:
			return got
		case <-time.After(10 * time.Millisecond):
		case <-end:
			t.Fatalf("no message has arrived; the nodes log\n%v\n%v", from.log, to.log)
		}
	}
}

// mustLog waits for a log line with a text.
func (n *node) mustLog(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(n.log.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no log line says %q:\n%v", text, n.log)
		}
	}
}

// A node that closes connections at once, because it is starting, is named once until it keeps one.
func TestNodeThatClosesConnectionsAtOnce(t *testing.T) {
	t.Parallel()
	starting, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer starting.Close()
	n := start(t, address(t), nil, Options{Cluster: 5, ID: 1, Peers: map[uint64]string{2: starting.Addr().String()}})
	accept := func() net.Conn {
		t.Helper()
		_ = starting.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
		c, err := starting.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const attempts = 5
	for range attempts {
		_ = accept().Close()
	}
	keeps := accept()
	n.mustLog(t, "connected to a node")
	said := n.log.String()
	if warned, connected := strings.Count(said, "a node cannot be reached"), strings.Count(said, "connected to a node"); warned != 1 || connected != 1 {
		t.Errorf("the log says\n%s", said)
	}
	_ = keeps.Close()
	_ = accept().Close()
	n.mustLog(t, `"was connected"=true`)
}

func TestMessagesArriveWholeAndInOrder(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	sendUntilReceived(t, a, b, message(1, nil))
	large := bytes.Repeat([]byte("large"), 3*firstBytes/5)
	a.Send([]*raftpb.Message{message(2, large), message(3, []byte("small"))})
	for want := uint64(2); want <= 3; {
		m := <-b.received
		if m.GetIndex() == 1 { // was sent again
			continue
		}
		if m.GetIndex() != want {
			t.Fatalf("message %d arrived, want %d", m.GetIndex(), want)
		}
		if want == 2 && !bytes.Equal(m.GetEntries()[0].GetData(), large) {
			t.Error("a large entry has changed on its way")
		}
		want++
	}
}

func TestNodeThatIsStartedAgainIsReached(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	sendUntilReceived(t, a, b, message(1, nil))
	b.end()
	start(t, b.port.Addr().String(), nil, b.o)
	for end := time.After(patience); ; {
		a.Send([]*raftpb.Message{message(2, nil)})
		select {
		case <-b.received: // Receive is that of the first start
			return
		case <-time.After(10 * time.Millisecond):
		case <-end:
			t.Fatalf("the node was not reached again:\n%v", a.log)
		}
	}
}

func TestWhatWaitsForANodeIsBounded(t *testing.T) {
	t.Parallel()
	lost := make(chan uint64, 100)
	a := start(t, "127.0.0.1:0", nil, Options{Cluster: 5, ID: 1, Peers: map[uint64]string{}, QueueBytes: 100,
		Unreachable: func(id uint64) { lost <- id }})
	p := &peer{id: 2, queue: make(chan queued, maxQueued)} // no goroutine sends
	a.peers.Store(&map[uint64]*peer{2: p})
	a.Send([]*raftpb.Message{message(1, make([]byte, 60)), message(2, make([]byte, 40))})
	if len(p.queue) != 2 || a.Figures().Lost != 0 {
		t.Fatalf("%d messages wait, want 2", len(p.queue))
	}
	a.Send([]*raftpb.Message{message(3, make([]byte, 1))})
	if len(p.queue) != 2 || a.Figures().Lost != 1 || <-lost != 2 {
		t.Errorf("%d messages wait, want 2", len(p.queue))
	}
	a.empty(p)
	a.Send([]*raftpb.Message{message(4, make([]byte, 101))})
	if len(p.queue) != 1 {
		t.Error("a message of more than the bound was not taken, although none waited")
	}
	for range maxQueued {
		a.Send([]*raftpb.Message{{To: new(uint64(2))}})
	}
	if len(p.queue) != maxQueued {
		t.Errorf("%d messages wait, want %d", len(p.queue), maxQueued)
	}
}

func TestStrangersAreNotReceived(t *testing.T) {
	t.Parallel()
	n := start(t, "127.0.0.1:0", nil, Options{Cluster: 5, ID: 1, Peers: map[uint64]string{2: "127.0.0.1:1"}})
	for _, test := range []struct {
		sends []byte
		logs  string
	}{
		{greeting(hello{cluster: 6, from: 2, to: 1}), "is of the cluster 6"},
		{greeting(hello{cluster: 5, from: 2, to: 3}), "wants node 3"},
		{greeting(hello{cluster: 5, from: 1, to: 1}), "has this node's ID"},
		{greeting(hello{cluster: 5, from: 4, to: 1}), "is not a member"},
		{bytes.Repeat([]byte("GET / "), 10), "which this program does not know"},
		{append(greeting(hello{cluster: 5, from: 2, to: 1}), 255, 255, 255, 255), "are allowed"},
		{append(greeting(hello{cluster: 5, from: 2, to: 1}), 2, 0, 0, 0, 255, 255), "is not one"},
		{append(greeting(hello{cluster: 5, from: 2, to: 1}), 0, 0, 0, 0), "sends a message from node 0"},
	} {
		conn, err := net.Dial("tcp", n.port.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(test.sends); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", test.logs, err)
		}
		n.mustLog(t, test.logs)
		_ = conn.Close()
	}
	if len(n.received) > 0 {
		t.Errorf("a message was received: %v", <-n.received)
	}
}

// Connections that do not say which node they are of keep no node out: the oldest ends.
func TestSilentConnectionsKeepNoNodeOut(t *testing.T) {
	t.Parallel()
	n := start(t, "127.0.0.1:0", nil, Options{Cluster: 5, ID: 1, Peers: map[uint64]string{2: "127.0.0.1:1"}})
	connect := func(sends []byte) net.Conn {
		conn, err := net.Dial("tcp", n.port.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Write(sends); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	oldest := connect([]byte(magic))
	for end := time.Now().Add(patience); n.strangers.Under() < 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a connection was not taken")
		}
	}
	for range max(maxStrangers, maxConnections) {
		connect([]byte(magic))
	}
	if _, err := oldest.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest connection: %v, want that it was ended", err)
	}
	if n.strangers.Ended() == 0 {
		t.Error("the oldest connection ended because it had waited too long")
	}
	hello := greeting(hello{cluster: 5, from: 2, to: 1})
	for range maxConnections {
		connect(append(hello, wire(t, &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(2)), To: new(uint64(1))})...))
		select {
		case <-n.received:
		case <-time.After(patience):
			t.Fatalf("a node's message was not received:\n%v", n.log)
		}
	}
	connect(hello)
	n.mustLog(t, "as many as there may be")
}

func wire(t *testing.T, m *raftpb.Message) []byte {
	t.Helper()
	b, err := appendMessage(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNodesProveThemselves(t *testing.T) {
	t.Parallel()
	ours := certstest.New(t)
	config := ours.Node()
	a, b := pair(t, config)
	sendUntilReceived(t, a, b, message(1, []byte("data")))

	theirs := certstest.New(t)
	config = theirs.Node()
	config.InsecureSkipVerify = true // it wants to be believed, whichever node it talks to
	if conn, err := tls.Dial("tcp", b.port.Addr().String(), config); err == nil {
		_, _ = conn.Write(greeting(hello{cluster: 5, from: 1, to: 2}))
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	b.mustLog(t, "certificate")
}

// greeting is what a connection to a node begins with.
func greeting(h hello) []byte { return appendHello([]byte(magic), h) }

func TestPeerBeyondLoopbackNeedsTLS(t *testing.T) {
	t.Parallel()
	p, err := port.Listen(port.Options{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := New(Options{Port: p, Peers: map[uint64]string{2: "192.0.2.1:7001"}}); !errors.Is(err, port.ErrNeedsTLS) {
		t.Errorf("without TLS: %v", err)
	}
}

func FuzzReadMessage(f *testing.F) {
	b, _ := appendMessage(nil, message(7, []byte("data")))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r := reader{Reader: bufio.NewReader(bytes.NewReader(b))}
		for {
			m, err := r.message()
			if err != nil {
				return
			}
			if _, err := appendMessage(nil, m); err != nil {
				t.Errorf("%v was read and cannot be written: %v", m, err)
			}
		}
	})
}

// The bytes of messages that follow each other are read into the same memory.
func TestReaderKeepsItsBuffer(t *testing.T) {
	const runs = 100
	var stream []byte
	for range runs + 2 { // AllocsPerRun makes one more
		stream, _ = appendMessage(stream, message(7, make([]byte, 20_000)))
	}
	r := reader{Reader: bufio.NewReaderSize(bytes.NewReader(stream), bufferBytes)}
	if _, err := r.read(); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(runs, func() {
		if b, err := r.read(); err != nil || len(b) < 20_000 {
			t.Fatal(len(b), err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a message, want none", n)
	}
}

// What a node's socket does not take at once waits, and arrives whole and in order.
func TestNodeThatReadsLate(t *testing.T) {
	t.Parallel()
	peers := map[uint64]string{1: address(t), 2: address(t)}
	a := start(t, peers[1], nil, Options{Cluster: 5, ID: 1, Peers: peers})
	reads, received := make(chan struct{}), make(chan *raftpb.Message, 1000)
	b := start(t, peers[2], nil, Options{Cluster: 5, ID: 2, Peers: peers, Receive: func(m *raftpb.Message) {
		if len(m.GetEntries()) == 0 {
			received <- m
			return
		}
		<-reads
		received <- m
	}})
	b.received = received
	sendUntilReceived(t, a, b, &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(1)), To: new(uint64(2))})
	const messages = 400
	for i := range uint64(messages) { // 20 MB: more than both sockets hold
		a.Send([]*raftpb.Message{message(i, bytes.Repeat([]byte{byte(i)}, 50_000))})
	}
	if waiting := len(a.peer(2).queue); waiting < 10 {
		t.Errorf("%d messages wait: the sockets have taken the others", waiting)
	}
	close(reads)
	for next := uint64(0); next < messages; {
		select {
		case m := <-received:
			if len(m.GetEntries()) == 0 {
				continue
			}
			if data := m.GetEntries()[0].GetData(); m.GetIndex() != next || !bytes.Equal(data, bytes.Repeat([]byte{byte(next)}, 50_000)) {
				t.Fatalf("message %d has arrived, or what it has is wrong, want %d", m.GetIndex(), next)
			}
			next++
		case <-time.After(patience):
			t.Fatalf("message %d has not arrived; the nodes log\n%v\n%v", next, a.log, b.log)
		}
	}
	if f := a.Figures(); f.Lost != 0 {
		t.Errorf("%d messages were lost", f.Lost)
	}
}
