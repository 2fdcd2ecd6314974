package broker

import (
	"bufio"
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

var pingreq = mqtt.AppendPingreq(nil)

func TestAReaderWhoseClientNeverWaitsTakesTurns(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	patient, greedy := n.connect(), n.connect()
	for range 2 * session.PaceBurst {
		patient.Ping()
	}
	if entered := n.broker.Gate.Entered(); entered != 0 {
		t.Fatalf("the reader of a client that waits for each answer entered the gate %d times", entered)
	}
	const pings = 20 * session.PaceBurst
	go greedy.Write(bytes.Repeat(pingreq, pings))
	for range pings {
		greedy.Expect(mqtt.PINGRESP)
	}
	if n.broker.Gate.Entered() == 0 {
		t.Fatalf("the reader of a client that sent %d packets at once never entered the gate", pings)
	}
	if paced := n.broker.Stats().PacketsPaced.Load(); paced == 0 || paced > pings {
		t.Fatalf("%d packets were counted as handled in turn, of %d", paced, pings)
	}
	patient.Ping()
}

// The reader of a large packet takes turns before the packet is complete.
func TestAReaderOfAPartOfAPacketTakesTurns(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	part := mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{Topic: []byte("t"), Payload: make([]byte, 4<<20)})
	part = part[:len(part)-1]
	for deadline := time.Now().Add(time.Minute); n.broker.Gate.Entered() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no reader of parts of 4 MiB has entered the gate")
		}
		c := n.connect()
		c.Write(part) // a reader that has to wait for each piece of it owes nothing
		c.Drop()
	}
}

// A client may send a packet in records of TLS, or fragments of WebSocket, of a byte each. Its
// reader takes turns, although it has read little.
func TestAReaderOfManySmallPartsTakesTurns(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go n.broker.Serve(byteListener{l})
	packets := mqtt.AppendConnect(nil, &mqtt.Connect{Version: mqtt.V5, CleanStart: true})
	packets = mqtt.AppendPublish(packets, mqtt.V5, &mqtt.Publish{Topic: []byte("t"), Payload: make([]byte, minCountedPart/2)})
	for deadline := time.Now().Add(time.Minute); n.broker.Gate.Entered() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no reader of parts of a byte has entered the gate")
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(deadline)
		c.Write(packets[:len(packets)-1]) // a reader that has to wait for a part owes nothing
		c.Read(make([]byte, 1))
		c.Close()
	}
}

// byteListener accepts connections on which each read gives one byte.
type byteListener struct{ net.Listener }

func (l byteListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &byteConn{c, bufio.NewReaderSize(c, 64<<10)}, nil
}

type byteConn struct {
	net.Conn
	in *bufio.Reader
}

func (c *byteConn) Read(p []byte) (int, error) { return c.in.Read(p[:1]) }

func TestAReplayOfManyRetainedMessagesTakesTurns(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	for i := range 20 * session.ReplayAhead {
		n.broker.PublishSys(string(rune('a'+i%26))+"/"+string(rune('0'+i/26)), "a figure")
	}
	c := n.connect()
	c.Subscribe("$SYS/#", 0)
	for range 20 * session.ReplayAhead {
		c.Expect(mqtt.PUBLISH)
	}
	if n.broker.Gate.Entered() == 0 {
		t.Fatalf("a replay of %d messages was done in one go", 20*session.ReplayAhead)
	}
}

// Greedy readers make room for clients that ask, and not for those that only take what
// they are sent: the subscribers of a greedy publisher.
func TestAcknowledgementsAskForNothing(t *testing.T) {
	t.Parallel()
	for typ, want := range map[mqtt.Type]bool{
		mqtt.SUBSCRIBE: true, mqtt.UNSUBSCRIBE: true, mqtt.PINGREQ: true, mqtt.PUBLISH: false, // at QoS 0
		mqtt.PUBACK: false, mqtt.PUBREC: false, mqtt.PUBREL: false, mqtt.PUBCOMP: false, mqtt.DISCONNECT: false,
	} {
		if got := mqtt.Asks(byte(typ) << 4); got != want {
			t.Errorf("%v asks: %v", typ, got)
		}
	}
	for qos := byte(1); qos <= 2; qos++ {
		if !mqtt.Asks(byte(mqtt.PUBLISH)<<4 | qos<<1) {
			t.Errorf("a PUBLISH at QoS %d asks for nothing", qos)
		}
	}
}
