package broker

import (
	"errors"
	"io"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/acks"
	"github.com/holdfast-mqtt/holdfast/internal/broker/alias"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/principals"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
)

// Conn is one client's network connection. Fields marked reader or sweep belong to that
// goroutine; atomic fields and acks may be used by any; reserved is guarded by Broker.mu.
// Of the others, those without a remark do not change once the client is connected.
type Conn struct {
	peer.Peer
	b       *Broker
	session *session.Session

	origin   *access.Origin
	place    *principals.ConnectionPlace     // reader: among the connections of its principal
	identity atomic.Pointer[access.Identity] // from CONNECT on; nil: the server neither authenticates clients nor has a policy

	acks       acks.Ring
	responses  *responseRoute // owned by the goroutine that writes acknowledgements: it holds the lock of acks, or is the reader while no acknowledgement is pending; nil: no response yet
	placeFreed chan struct{}  // capacity 1: receiving has fallen; the reader makes it before it sets wantsPlace
	receiving  atomic.Int32   // inflight publishes of the client (QoS 1 and 2); the reader adds one whose acknowledgement must wait
	handshakes int32          // reader: how many of receiving wait for the client's PUBREL

	untaken     atomic.Int64  // bytes of output that the client had not taken when the sweep last checked
	active      atomic.Int64  // when the sweep last found that the client had sent bytes or was held up; before that, when the connection was accepted or the client connected; on the broker's clock in ms
	packet      packetWatch   // sweep: how long the client has been sending the unfinished packet
	unfinished  atomic.Uint32 // identifies the packet of which the reader has read only a part (handled<<1|1); 0: none
	heard       atomic.Uint32 // heardSweep and heardRelief: the client has sent bytes since that goroutine last checked
	readerState atomic.Uint32 // a readerState
	handled     uint32        // reader: number of packets handled, which tells one unfinished packet from the next
	wantsPlace  atomic.Bool   // the reader waits for receiving to fall (waitForPlace)

	requests *requests    // reader: nil: no request to the handler yet
	aliases  alias.Topics // reader: of what the client publishes
	counted  int32        // reader: how many bytes of the unfinished packet are in its debt already
	debt     int32        // reader: units of work that it has done; each wait for its client takes some of them away, see session/pace.go

	partWork int16 // reader: units of work for parts of packets since it last let others work, up to session.PaceBurst
	readWork int16 // reader: units of work that the last read took, likewise

	bridge   bool // the client is a broker that connects as a bridge
	graceful bool // reader: the client sent DISCONNECT with reason code 0, so its will is not published
	decoding bool // reader: it decodes a packet for which it has not changed anything yet; a panic then ends the connection only
	reserved bool // counts among the connections reserved for clients on this machine; guarded by Broker.mu
}

// The goroutines that check whether the client has sent something: bits of Conn.heard.
const (
	heardSweep  uint32 = 1 << iota // the sweep, which looks for silent clients
	heardRelief                    // package relief, which looks for packets that don't grow
)

// readerState is what a connection's reader is doing. The sweep uses it to tell a silent
// client from a client whose bytes the reader has not read yet.
type readerState uint32

const (
	readerListens readerState = iota
	readerWorks
	readerWaitsForClient // until the client has taken output
)

// drained is the output's Drained callback: it sends more, as the full output has become empty.
func (c *Conn) drained() {
	defer failstop.End(c.b.Log, "feeding a drained output")
	s := c.session
	if s == nil {
		return
	}
	c.b.Do(func(t *session.Turn) {
		t.MustNotBlock = true
		s.Mu.Lock()
		if s.Peer == &c.Peer {
			s.Pump(t)
			t.MarkDirty(&c.Peer)
		}
		s.Mu.Unlock()
		c.b.ResumeFeed(t, s)
	})
}

// serve reads the connection until the client is connected. Handling CONNECT makes the
// goroutine's stack grow, and that stack would be most of what an idle client costs; so a
// new goroutine reads from then on.
func (b *Broker) serve(nc net.Conn) {
	c := &Conn{b: b, Peer: peer.Peer{Env: &b.peers}, origin: access.OriginOf(nc)}
	c.Reader.Add(1)
	c.active.Store(b.Now())
	c.Transport = transport.NewConn(nc, b.flushers, transport.Options{OutputLimit: b.Limits().OutputBuffer, Drained: c.drained, Memory: b.Memory, InputKind: memory.Unconnected})
	if !b.addConn(c) {
		c.Transport.Close()
		return
	}
	if !c.read(true) {
		c.leave()
		return
	}
	b.readers.Add(1) // the caller still counts in readers, so readers.Wait has not returned
	go func() {
		defer failstop.End(b.Log, "end of a connection")
		c.read(false)
		c.leave()
		b.readers.Done()
	}()
}

// leave releases what the connection has; its reader calls it last.
func (c *Conn) leave() {
	c.Transport.EndInput()
	c.dropAliases()
	c.leaveSession()
	c.Reader.Done()
	c.b.removeConn(c)
}

// dropAliases releases the topic aliases, when the reader ends.
func (c *Conn) dropAliases() {
	c.Peer.DropAliases()
	c.aliases.Release(c.b.Memory)
}

// read handles packets until the connection ends. With toConnect it returns true as soon
// as the client is connected.
func (c *Conn) read(toConnect bool) (connected bool) {
	defer func() {
		if p := recover(); p != nil {
			c.fail(c.panicked(p))
		}
	}()
	need, left := 0, takeoverBytes
	handled := c.handled
	for !toConnect || c.session == nil {
		if c.Replaced.Load() && left <= 0 {
			c.TakenOver()
			return false
		}
		before := len(c.Transport.Buffered())
		c.noteUnfinished(before > 0, c.handled != handled)
		handled = c.handled
		c.decoding = c.origin.TLS == nil && !c.Transport.Encrypted() // a panic while TLS is read must end the process: it may leave a lock of the transport locked
		c.readerState.Store(uint32(readerListens))
		began := c.beginRead()
		err := c.Transport.Fill(need)
		c.readerState.Store(uint32(readerWorks))
		c.endRead(began)
		c.decoding = false
		if err != nil {
			switch {
			case errors.Is(err, transport.ErrClosed): // the server closed it: Shut is still writing the last packets
			case errors.Is(err, transport.ErrInterrupted):
				c.TakenOver()
			case errors.Is(err, transport.ErrNoMemory):
				c.fail(errPacketMemory)
			case errors.Is(err, io.EOF):
				c.NoteEnding(peer.Ending{By: peer.ByNetwork, Reason: "the client closed the connection without a DISCONNECT"})
				c.Transport.Close()
			default:
				c.NoteEnding(peer.Ending{By: peer.ByNetwork, Reason: err.Error()})
				c.Transport.Close()
			}
			return false
		}
		if c.Replaced.Load() {
			left -= len(c.Transport.Buffered()) - before
		}
		if c.heard.Load() != heardSweep|heardRelief { // bits instead of a time: a read of the clock would cost more
			c.heard.Store(heardSweep | heardRelief)
		}
		if c.b.awaitRead != nil && !c.b.awaitRead() {
			c.Disconnect(errEnding.Code, errEnding.Reason)
			return false
		}
		if need, err = c.handleBuffered(); err != nil {
			c.fail(err)
			return false
		}
	}
	return true
}

// noteUnfinished tells the sweep, before the reader waits for input, whether the reader
// has a part of a packet, and whether it has handled a packet since the previous call.
func (c *Conn) noteUnfinished(part, handled bool) {
	switch n := c.unfinished.Load(); {
	case !part && n != 0:
		c.unfinished.Store(0)
	case part && (n == 0 || handled):
		c.unfinished.Store(c.handled<<1 | 1)
	}
}

// handleBuffered handles every whole packet that has been read, then flushes the output.
// need is the length of the last packet if only a part of it has been read, otherwise 0.
func (c *Conn) handleBuffered() (need int, err error) {
	t := c.b.NewTurn()
	t.Self = &c.Peer
	c.beginPacing(t)
	need, err = c.handlePackets(t)
	c.Transport.Flush()
	c.endPacing(t)
	t.End()
	c.Transport.Flush() // also what t.End appended for this client
	return need, err
}

// handlePackets handles every whole packet that has been read. If decoding a packet
// panics, the turn ends as usual: the packets before it were handled correctly.
func (c *Conn) handlePackets(t *session.Turn) (need int, err error) {
	defer func() {
		if p := recover(); p != nil {
			need, err = 0, c.panicked(p)
		}
		c.decoding = false
	}()
	for {
		c.decoding = true
		if c.Protocol == mqtt.V31 {
			mqtt.ClearDup31(c.Transport.Buffered())
		}
		header, body, n, need, err := mqtt.Split(c.Transport.Buffered(), c.maxIncoming())
		if err != nil {
			return 0, err
		}
		if n == 0 {
			c.countPart(t)
			return need, nil
		}
		c.decoding = false
		c.pace(t)
		if c.b.may != nil && mqtt.Type(header>>4) == mqtt.PUBLISH {
			if err := c.holdToRate(t, n); err != nil {
				return 0, err
			}
		}
		c.decoding = true // until the packet's handler has decoded it
		if traces := c.Env.Tracer.Packets(); traces != nil {
			c.Traced(traces, c.Transport.Buffered()[:n], c.aliases.Topic)
		}
		t.PacketsIn++
		c.handled++
		t.Worked += 1 + (n-int(c.counted))/session.BytesPerUnit
		c.counted = 0
		err = c.handle(t, header, body)
		c.decoding = false
		c.Transport.Discard(n)
		if err != nil {
			return 0, err
		}
		if err := c.waitForRoom(t); err != nil {
			return 0, err
		}
	}
}

// panicked handles a panic of the reader. If the reader was decoding, it returns the
// error that ends the connection; otherwise it ends the process. The deferred function
// that has recovered calls it.
func (c *Conn) panicked(p any) error {
	if !c.decoding {
		failstop.Process(c.b.Log, p, "client", c.Client, "remote", c.Remote())
	}
	c.b.Counters.Panics.Add(1)
	c.b.Log.Error("closing a connection because the server has a defect in decoding; please report this", "client", c.Client, "remote", c.Remote(), "panic", p, "stack", string(debug.Stack()))
	return errDefect
}

// errDefect ends the connection of a client whose bytes made the decoder panic.
var errDefect = &mqtt.Error{Code: mqtt.UnspecifiedError, Reason: "the server failed to decode this packet"}

// waitForRoom makes the reader wait while the client does not take its responses, or
// while too many of its acknowledgements wait for the disk. Before the reader waits, it
// flushes the connections that got messages from this client.
func (c *Conn) waitForRoom(t *session.Turn) error {
	l := c.b.Limits()
	if c.acks.Pending() > l.ReceiveMaximum+l.MaxInflight+spareAcks {
		t.Flush()
		c.Transport.Flush()
		if !c.b.WaitDurable(c.b.Journal.Last()) { // no acknowledgement waits for a later batch
			return errEnding
		}
	}
	most := l.OutputBuffer
	if size := c.Transport.Size(); size > tightOutput && c.b.Memory.Tight() {
		most = min(most, tightOutput)
	}
	if c.Transport.Size() >= most {
		t.Flush()
		c.Transport.Flush()
		t.LeaveGate()
		c.readerState.Store(uint32(readerWaitsForClient))
		err := c.Transport.WaitOutput(most)
		c.readerState.Store(uint32(readerWorks))
		if err != nil {
			return errGone
		}
	}
	if n := len(c.Transport.Buffered()); n >= tightInput && c.b.Memory.Tight() {
		// This client sends as fast as the reader reads: the pause lets other
		// connections write what its messages have added to their outputs.
		t.Flush()
		c.Transport.Flush()
		t.LeaveGate()
		time.Sleep(tightPause)
	}
	if len(t.Dirty) > session.MaxDirty {
		t.Flush()
	}
	return nil
}

// While memory is tight, a reader waits while its client has more than tightOutput bytes
// of output, and reads about tightInput bytes from its client in each tightPause.
const (
	tightOutput = 4 << 10
	tightInput  = 4 << 10
	tightPause  = 2 * time.Millisecond
)

// spareAcks is how many acknowledgements may wait for the disk in addition to those that
// Receive Maximum and MaxInflight bound: those of SUBSCRIBE and UNSUBSCRIBE, and of
// publishes that the client has sent again.
const spareAcks = 64

// maxIncoming is the largest packet that the client may send now, in bytes.
func (c *Conn) maxIncoming() int {
	if c.session == nil {
		return min(c.b.Limits().MaxPacketSize, c.b.Limits().MaxConnectSize)
	}
	return c.b.Limits().MaxPacketSize
}

// errPacketMemory ends a connection when the pool of memory has no room for its packet.
var errPacketMemory = &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: "the server has no memory for a packet of this size at the moment (--max-memory)"}

// errGone ends the reader without a DISCONNECT to the client.
var errGone = errors.New("connection is gone")

// errStopping ends the reader because another goroutine ends the connection. That
// goroutine appends the DISCONNECT and closes the output; the reader must not close the
// output before the DISCONNECT is in it.
var errStopping = errors.New("connection is being ended")

// errEnding ends a connection whose client is owed what is not stored any more, or may be known to
// another node only.
var errEnding = &mqtt.Error{Code: mqtt.ServerShuttingDown, Reason: "this node does not lead the cluster any more"}

// handle handles one packet. An error ends the connection; an *mqtt.Error has the reason
// code for the client. The handler of each type decodes the packet, so that the stack of a
// client that sends PINGREQ, as most do most of the time, has no room for the others.
func (c *Conn) handle(t *session.Turn, header byte, body []byte) error {
	typ := mqtt.Type(header >> 4)
	if c.session == nil {
		if typ != mqtt.CONNECT {
			return errGone // close silently: CONNECT must come first [MQTT-3.1.0-1]
		}
		return c.connect(t, body)
	}
	if c.Stopping.Load() {
		return errStopping
	}
	t.ClientWaits = t.ClientWaits || mqtt.Asks(header)
	switch typ {
	case mqtt.PUBLISH:
		return c.handlePublish(t, header, body)
	case mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBREL, mqtt.PUBCOMP:
		return c.handleAck(t, typ, body)
	case mqtt.SUBSCRIBE:
		return c.subscribe(t, body)
	case mqtt.UNSUBSCRIBE:
		return c.unsubscribe(t, body)
	case mqtt.PINGREQ:
		return c.ping(body)
	case mqtt.DISCONNECT:
		return c.disconnected(t, body)
	case mqtt.CONNECT:
		return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a second CONNECT"} // [MQTT-3.1.0-2]
	case mqtt.AUTH:
		return c.reauthenticate(t, body)
	default:
		return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a packet that only servers send"}
	}
}

// handleAck handles the client's PUBACK, PUBREC, PUBREL or PUBCOMP.
func (c *Conn) handleAck(t *session.Turn, typ mqtt.Type, body []byte) error {
	a := mqtt.Ack{Bounds: c.b.Limits().Packet()}
	if err := a.Decode(c.Protocol, typ, body); err != nil {
		return err
	}
	c.decoding = false
	if typ == mqtt.PUBREL {
		c.pubrel(t, a.PacketID)
		return nil
	}
	known, more, batch := c.session.Acknowledged(t, &c.Peer, typ, &a)
	if typ == mqtt.PUBREC && !a.Code.Failed() {
		if known {
			c.acknowledgeWhenDurable(t, acks.Ack{Type: mqtt.PUBREL, ID: a.PacketID}, batch)
		} else {
			c.acknowledge(t, acks.Ack{Type: mqtt.PUBREL, ID: a.PacketID, Code: mqtt.PacketIdentifierNotFound}) // in its order [MQTT-4.6.0-4]
		}
	}
	if more {
		c.b.ResumeFeed(t, c.session)
	}
	return nil
}

// ping answers PINGREQ [MQTT-3.12.4-1].
func (c *Conn) ping(body []byte) error {
	if len(body) > 0 {
		return &mqtt.Error{Code: mqtt.MalformedPacket, Reason: "a PINGREQ has no body"}
	}
	c.decoding = false
	c.Append("", func(dst []byte, _ string) []byte { return mqtt.AppendPingresp(dst) })
	return nil
}

// disconnected handles the client's DISCONNECT.
func (c *Conn) disconnected(t *session.Turn, body []byte) error {
	p := mqtt.Disconnect{Bounds: c.b.Limits().Packet()}
	if err := p.Decode(c.Protocol, body); err != nil {
		return err
	}
	c.decoding = false
	s := c.session
	if !p.Code.FromClient() { // [MQTT-3.14.2-1]
		return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a DISCONNECT with a reason code that only servers send"}
	}
	if p.HasSessionExpiry {
		s.Mu.Lock()
		forbidden := s.Expiry == 0 && p.SessionExpiry != 0 // [MQTT-3.14.2-2]
		if !forbidden && s.Peer == &c.Peer {
			s.Expiry = c.b.Limits().GrantExpiry(p.SessionExpiry)
			c.b.SaveSession(s)
		}
		s.Mu.Unlock()
		if forbidden {
			return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a Session Expiry Interval of 0 can't be raised in DISCONNECT"}
		}
	}
	c.graceful = p.Code == mqtt.NormalDisconnection
	c.NoteEnding(peer.Ending{By: peer.ByClient, Code: p.Code, Reason: string(p.ReasonString)})
	// Detach before the connection closes: once the client sees that it is closed, it may
	// rely on the session to queue messages.
	c.b.Sessions.Detach(t, c.session, &c.Peer, c.graceful)
	c.Shut()
	return errGone
}

// fail ends the connection because of an error in the client's packets, or of a defect.
func (c *Conn) fail(err error) {
	var e *mqtt.Error
	switch {
	case errors.Is(err, errStopping):
	case errors.Is(err, errGone):
		c.Shut()
	case errors.As(err, &e):
		if c.session == nil {
			c.b.Log.Info("refusing a connection", "client", c.Client, "remote", c.Remote(), "code", e.Code, "reason", e.Reason)
		}
		c.Disconnect(e.Code, e.Reason)
	default:
		c.b.Log.Error("closing a connection", "client", c.Client, "remote", c.Remote(), "error", err)
		c.Disconnect(mqtt.UnspecifiedError, "")
	}
}

// takeoverBytes is how many bytes the reader still reads from a connection that is taken
// over. They are more than a socket's receive buffer holds, so the server handles all
// that a client sent before the takeover, unless the client goes on sending over the old
// connection.
const takeoverBytes = 8 << 20

// leaveSession detaches the connection from its session.
func (c *Conn) leaveSession() {
	if c.session == nil {
		return
	}
	if c.requests != nil {
		c.requests.endpoint.Close()
	}
	c.b.Do(func(t *session.Turn) {
		c.b.Sessions.Detach(t, c.session, &c.Peer, c.graceful)
		c.LogEnded(c.Identity())
		c.acks.Close(t, (*ackOutput)(c))
		c.b.Sessions.Detached(c.session, &c.Peer)
	})
}
