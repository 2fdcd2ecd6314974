package broker

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/failstop"
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
	"holdfast/internal/transport"
)

// Conn is one client's network connection. Its reader goroutine owns the fields
// that say so; the rest is set before the connection becomes known to others.
type Conn struct {
	b        *Broker
	tr       *transport.Conn
	session  *Session
	reserved bool           // takes a place that is kept for clients on this machine; guarded by Broker.mu
	reader   sync.WaitGroup // until the reader is gone and the session detached

	clientID   string
	since      time.Time     // when CONNECT was accepted
	identity   any           // what the Authorizer said
	keepAlive  time.Duration // 0: none
	receiveMax int           // QoS 1 and 2 deliveries that may be under way
	maxPacket  int           // largest packet the client takes; 0: any

	acks      ackRing
	responses responseRoute // of whoever writes acknowledgements: holds acks.mu, or is the reader and nothing is pending
	receiving atomic.Int32  // QoS 1 and 2 publishes from the client under way: the reader adds, when it must let one wait

	handshakes int           // reader: those of them that wait for the client's PUBREL
	wantsPlace atomic.Bool   // the reader waits for receiving to fall
	placeFreed chan struct{} // of capacity 1: it has fallen since; made by the reader before it sets wantsPlace

	reads           atomic.Uint32 // a readerState
	aliasInBytes    int32         // reader: of the topics in aliasIn
	untaken         atomic.Int64  // output that the client had not taken when the sweep looked last
	heard           atomic.Uint32 // heardSweep and heardRelief: the client has sent bytes since that goroutine looked
	aliasOutBytes   int32         // of the topics in aliasOut; guarded by the output lock
	active          atomic.Int64  // when the sweep saw that, or the client came or connected, on the broker's clock
	unfinished      atomic.Uint32 // which packet the reader waits for the rest of; 0: for none
	unfinishedSeen  uint32        // the sweep's: what it saw of that last
	unfinishedSince int64         // the sweep's: when it saw that first, on the broker's clock
	replaced        atomic.Bool   // the client has another connection now: this one ends with what has come
	stopping        atomic.Bool
	ending          atomic.Pointer[ending] // nil: not known yet
	connected       atomic.Bool            // CONNECT was accepted: session and all that it settled are set

	version     mqtt.Version
	bridge      bool   // the client is a broker that connects as a bridge
	problemInfo bool   // Reason Strings are wanted on other packets than CONNACK and DISCONNECT
	handled     uint32 // reader: packets, to tell one unfinished packet from the next
	graceful    bool   // reader: the client said goodbye, so no will
	decoding    bool   // reader: it reads what the client has sent, and has changed nothing for it; see package failstop

	owed     int      // reader: work done without waiting for the client, see pace.go
	aliasIn  []string // reader: topic aliases of the client
	endpoint Endpoint // reader: the handler's side of this connection

	aliasOut    map[string]uint16 // topic aliases given to the client; guarded by the output lock
	aliasOutMax int
}

// Who else looks whether the client has sent something: bits of Conn.heard.
const (
	heardSweep  uint32 = 1 << iota // the sweep, which looks for silent clients
	heardRelief                    // relieve, which looks for packets that don't grow
)

// readerState is what a connection's reader is doing, for the sweep to tell a client that
// is silent from one that is not listened to.
type readerState uint32

const (
	readerListens readerState = iota
	readerWorks
	readerWaitsForClient // to take output
)

// graceToWrite is how long a connection that is to be closed may take to have
// its last packets written.
const graceToWrite = 2 * time.Second

// serve is the reader goroutine until the client is connected. What CONNECT takes
// makes its stack grow, and for an idle client that would be most of what it
// costs; so a fresh goroutine goes on.
func (b *Broker) serve(nc net.Conn) {
	c := &Conn{b: b}
	c.reader.Add(1)
	c.active.Store(b.Now())
	c.tr = transport.NewConn(nc, b.flushers, transport.Options{OutputLimit: b.limits.OutputBuffer, Drained: c.drained, Memory: b.memory, InputKind: memory.Unconnected})
	if !b.addConn(c) {
		c.tr.Close()
		return
	}
	if !c.read(true) {
		c.leave()
		return
	}
	b.readers.Add(1) // the caller is one of them, so no Wait has returned yet
	go func() {
		defer failstop.End(b.log, "end of a connection")
		c.read(false)
		c.leave()
		b.readers.Done()
	}()
}

// leave is the last thing that a connection's reader does.
func (c *Conn) leave() {
	c.tr.EndInput()
	c.dropAliases()
	c.finish()
	c.reader.Done()
	c.b.removeConn(c)
}

// dropAliases lets go of the topic aliases, when the reader ends.
func (c *Conn) dropAliases() {
	c.tr.Lock()
	defer c.tr.Unlock()
	c.b.memory.Credit(memory.Subscriptions, int64(c.aliasInBytes+c.aliasOutBytes))
	c.aliasIn, c.aliasInBytes, c.aliasOut, c.aliasOutBytes = nil, 0, nil, 0
	c.aliasOutMax = 0 // what is still delivered goes nowhere
}

// read handles packets until the connection ends, or until the client is
// connected, if that is what is wanted; then it returns true.
func (c *Conn) read(toConnect bool) (connected bool) {
	defer func() {
		if p := recover(); p != nil {
			c.fail(c.panicked(p))
		}
	}()
	need, left := 0, takeoverBytes
	handled := c.handled
	for !toConnect || c.session == nil {
		if c.replaced.Load() && left <= 0 {
			c.takenOver()
			return false
		}
		before := len(c.tr.Buffered())
		c.noteUnfinished(before > 0, c.handled != handled)
		handled = c.handled
		c.decoding = true
		c.reads.Store(uint32(readerListens))
		err := c.tr.Fill(need)
		c.reads.Store(uint32(readerWorks))
		c.decoding = false
		if err != nil {
			if errors.Is(err, transport.ErrClosed) {
				return false // by us: Shut is still writing what the client is to know
			}
			if errors.Is(err, transport.ErrInterrupted) {
				c.takenOver()
				return false
			}
			if errors.Is(err, transport.ErrNoMemory) {
				c.fail(errPacketMemory)
				return false
			}
			if errors.Is(err, io.EOF) {
				c.noteEnding(ending{by: byNetwork, reason: "the client closed the connection without a DISCONNECT"})
			} else {
				c.noteEnding(ending{by: byNetwork, reason: err.Error()})
			}
			c.tr.Close()
			return false
		}
		if c.replaced.Load() {
			left -= len(c.tr.Buffered()) - before
		}
		if c.heard.Load() != heardSweep|heardRelief { // so that reading costs no look at the clock
			c.heard.Store(heardSweep | heardRelief)
		}
		if need, err = c.handleBuffered(); err != nil {
			c.fail(err)
			return false
		}
	}
	return true
}

// noteUnfinished tells the sweep, before the reader waits for input, whether a packet
// has been begun, and whether it is another one than at the last time.
func (c *Conn) noteUnfinished(is, another bool) {
	switch n := c.unfinished.Load(); {
	case !is && n != 0:
		c.unfinished.Store(0)
	case is && (n == 0 || another):
		c.unfinished.Store(c.handled<<1 | 1)
	}
}

// handleBuffered handles every whole packet that has been read, then writes
// once. need is the length of a packet of which only a part is there.
func (c *Conn) handleBuffered() (need int, err error) {
	t := c.b.turn()
	t.self = c
	c.beginPacing(t)
	need, err = c.handlePackets(t)
	c.tr.Flush()
	c.endPacing(t)
	t.end()
	c.tr.Flush() // what the end of the turn had for this client, too
	return need, err
}

// handlePackets handles every whole packet that has been read. If one can't be
// decoded because of a defect the turn ends as it does otherwise: what it has done
// before is right.
func (c *Conn) handlePackets(t *Turn) (need int, err error) {
	defer func() {
		if p := recover(); p != nil {
			need, err = 0, c.panicked(p)
		}
		c.decoding = false
	}()
	for {
		c.decoding = true
		if c.version == mqtt.V31 {
			mqtt.ClearDup31(c.tr.Buffered())
		}
		header, body, n, need, err := mqtt.Split(c.tr.Buffered(), c.maxIncoming())
		if err != nil || n == 0 {
			return need, err
		}
		c.decoding = false
		c.pace(t)
		c.decoding = true // until the packet's handler has decoded it
		t.packetsIn++
		c.handled++
		t.work += 1 + n/bytesPerUnit
		err = c.handle(t, header, body)
		c.decoding = false
		c.tr.Discard(n)
		if err != nil {
			return 0, err
		}
		if err := c.waitForRoom(t); err != nil {
			return 0, err
		}
	}
}

// panicked says how a panic of the reader ends: while it was decoding with an error
// for the connection, otherwise with the process. To be called by the deferred
// function that has recovered.
func (c *Conn) panicked(p any) error {
	if !c.decoding {
		failstop.Process(c.b.log, p, "client", c.clientID, "remote", c.remote())
	}
	c.b.stats.Panics.Add(1)
	c.b.log.Error("closing a connection because the server has a defect in decoding; please report this", "client", c.clientID, "remote", c.remote(), "panic", p, "stack", string(debug.Stack()))
	return errDefect
}

// errDefect ends the connection of a client whose bytes made the decoder panic.
var errDefect = &mqtt.Error{Code: mqtt.UnspecifiedError, Reason: "the server failed to decode this packet"}

// BeginDecoding says that a Handler decodes bytes of the client's from here to
// EndDecoding: with no lock held, and before it has changed anything. A panic in
// between ends the connection and not the process. Within Handle only.
func (c *Conn) BeginDecoding() { c.decoding = true }

// EndDecoding ends what BeginDecoding began.
func (c *Conn) EndDecoding() { c.decoding = false }

// waitForRoom holds the reader up if the client doesn't take the answers that it
// asks for, or asks for more than the disk keeps up with. What it has sent to
// others leaves before that.
func (c *Conn) waitForRoom(t *Turn) error {
	l := &c.b.limits
	if int(c.acks.pending.Load()) > l.ReceiveMaximum+l.MaxInflight+spareAcks {
		t.flush()
		c.tr.Flush()
		c.b.waitDurable(c.b.journal.Last()) // whatever an acknowledgement waits for is in there
	}
	most := l.OutputBuffer
	if size := c.tr.Size(); size > tightOutput && c.b.memory.Tight() {
		most = min(most, tightOutput)
	}
	if c.tr.Size() >= most {
		t.flush()
		c.tr.Flush()
		t.leaveGate()
		c.reads.Store(uint32(readerWaitsForClient))
		err := c.tr.WaitOutput(most)
		c.reads.Store(uint32(readerWorks))
		if err != nil {
			return errGone
		}
	}
	if n := len(c.tr.Buffered()); n >= tightInput && c.b.memory.Tight() {
		// This client sends as fast as we read. What it sends is to become no
		// more traffic than others get rid of in the meantime.
		t.flush()
		c.tr.Flush()
		t.leaveGate()
		time.Sleep(tightPause)
	}
	if len(t.dirty) > maxDirty {
		t.flush()
	}
	return nil
}

// While memory is tight, a reader lets its client take what it has asked for first,
// and takes no more than tightInput bytes from it in each tightPause.
const (
	tightOutput = 4 << 10
	tightInput  = 4 << 10
	tightPause  = 2 * time.Millisecond
)

// spareAcks is how many acknowledgements may wait for the disk beyond those that
// Receive Maximum and inflight account for: of SUBSCRIBE, of what is sent again.
const spareAcks = 64

// maxDirty is how many connections a turn of a reader writes to before it has
// them flushed, although there is more to read.
const maxDirty = 4096

// maxIncoming bounds the packets of a client; before CONNECT it bounds that.
func (c *Conn) maxIncoming() int {
	if c.session == nil {
		return min(c.b.limits.MaxPacketSize, maxConnect)
	}
	return c.b.limits.MaxPacketSize
}

// maxConnect bounds a CONNECT: it is not known yet who sends it.
const maxConnect = 64 << 10

// errPacketMemory ends a connection whose packet can't be taken in.
var errPacketMemory = &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: "the server has no memory for a packet of this size at the moment"}

// errGone ends the reader without a word to the client.
var errGone = errors.New("connection is gone")

// handle handles one packet. An error ends the connection: an *mqtt.Error says
// with which reason.
func (c *Conn) handle(t *Turn, header byte, body []byte) error {
	typ := mqtt.Type(header >> 4)
	if c.session == nil {
		if typ != mqtt.CONNECT {
			return errGone // [MQTT-3.1.0-1]; nothing is said to who doesn't introduce himself
		}
		return c.connect(t, body)
	}
	if c.stopping.Load() {
		return errGone
	}
	switch typ {
	case mqtt.PUBLISH:
		return c.handlePublish(t, header, body)
	case mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBREL, mqtt.PUBCOMP:
		a := mqtt.Ack{Bounds: c.b.bounds}
		if err := a.Decode(c.version, typ, body); err != nil {
			return err
		}
		c.decoding = false
		c.handleAck(t, typ, &a)
		return nil
	case mqtt.SUBSCRIBE:
		p := mqtt.Subscribe{Bounds: c.b.bounds}
		if err := p.Decode(c.version, body); err != nil {
			return err
		}
		c.decoding = false
		return c.subscribe(t, &p)
	case mqtt.UNSUBSCRIBE:
		p := mqtt.Unsubscribe{Bounds: c.b.bounds}
		if err := p.Decode(c.version, body); err != nil {
			return err
		}
		c.decoding = false
		return c.unsubscribe(t, &p)
	case mqtt.PINGREQ:
		if len(body) > 0 {
			return &mqtt.Error{Code: mqtt.MalformedPacket, Reason: "a PINGREQ has no body"}
		}
		c.decoding = false
		c.tr.Lock()
		c.tr.SetOut(mqtt.AppendPingresp(c.tr.Out()))
		c.tr.Unlock()
		return nil
	case mqtt.DISCONNECT:
		p := mqtt.Disconnect{Bounds: c.b.bounds}
		if err := p.Decode(c.version, body); err != nil {
			return err
		}
		c.decoding = false
		return c.disconnected(t, &p)
	case mqtt.CONNECT:
		return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a second CONNECT"} // [MQTT-3.1.0-2]
	case mqtt.AUTH:
		return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "AUTH without an authentication method in CONNECT"}
	default:
		return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a packet that only servers send"}
	}
}

// handleAck handles the client's part in a delivery, or its PUBREL.
func (c *Conn) handleAck(t *Turn, typ mqtt.Type, a *mqtt.Ack) {
	if typ == mqtt.PUBREL {
		c.pubrel(t, a.PacketID)
		return
	}
	known, more, batch := c.session.acknowledged(t, c, typ, a)
	if typ == mqtt.PUBREC && !a.Code.Failed() {
		if known {
			c.acknowledgeWhenDurable(t, ack{typ: mqtt.PUBREL, id: a.PacketID}, batch)
		} else {
			c.writeAck(t, mqtt.PUBREL, a.PacketID, mqtt.PacketIdentifierNotFound, "")
		}
	}
	if more {
		c.b.goOn(t, c.session)
	}
}

// disconnected handles the client's DISCONNECT.
func (c *Conn) disconnected(t *Turn, p *mqtt.Disconnect) error {
	s := c.session
	if !p.Code.FromClient() { // [MQTT-3.14.2-1]
		return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a DISCONNECT with a reason code that only servers send"}
	}
	if p.HasSessionExpiry {
		s.mu.Lock()
		forbidden := s.expiry == 0 && p.SessionExpiry != 0 // [MQTT-3.14.2-2]
		if !forbidden && s.conn == c {
			s.expiry = c.b.grantExpiry(p.SessionExpiry)
			c.b.saveSession(s)
		}
		s.mu.Unlock()
		if forbidden {
			return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a Session Expiry Interval of 0 can't be raised in DISCONNECT"}
		}
	}
	c.graceful = p.Code == mqtt.NormalDisconnection
	c.noteEnding(ending{by: byClient, code: p.Code, reason: string(p.ReasonString)})
	// Before the client sees its connection closed: from then on it may rely on
	// messages waiting for it.
	c.b.detach(t, c)
	c.tr.Shut(graceToWrite)
	return errGone
}

// fail ends the connection because of what the client sent.
func (c *Conn) fail(err error) {
	var e *mqtt.Error
	switch {
	case errors.Is(err, errGone):
		c.tr.Shut(graceToWrite)
	case errors.As(err, &e):
		if c.session == nil {
			c.b.log.Info("refusing a connection", "client", c.clientID, "remote", c.remote(), "code", e.Code, "reason", e.Reason)
		}
		c.Disconnect(e.Code, e.Reason)
	default:
		c.b.log.Error("closing a connection", "client", c.clientID, "remote", c.remote(), "error", err)
		c.Disconnect(mqtt.UnspecifiedError, "")
	}
}

// Disconnect tells the client why (MQTT 5), closes the connection and makes its
// reader stop. The first call counts; from any goroutine.
func (c *Conn) Disconnect(code mqtt.ReasonCode, reason string) {
	if c.stopping.Swap(true) {
		return
	}
	c.noteEnding(ending{by: byServer, code: code, reason: reason})
	if c.connected.Load() && c.version == mqtt.V5 {
		c.append(reason, func(dst []byte, reason string) []byte {
			return mqtt.AppendDisconnect(dst, c.version, &mqtt.Disconnect{Code: code, ReasonString: []byte(reason)})
		})
	}
	c.tr.Shut(graceToWrite)
}

// takeoverBytes is how much a connection that is taken over still reads: more than
// a socket's receive buffer holds, so that only a client which goes on sending over
// the old connection is cut off.
const takeoverBytes = 8 << 20

// takeOver ends the connection because its client has another one, and waits until
// its reader has gone. What the client had sent before that takes effect first, a
// DISCONNECT that withdraws its will most of all [MQTT-3.14.4-3], unless it takes
// longer than Limits.TakeoverWait.
func (c *Conn) takeOver() {
	c.replaced.Store(true)
	c.tr.Interrupt()
	patience := time.AfterFunc(c.b.limits.TakeoverWait, c.takenOver)
	defer patience.Stop()
	c.reader.Wait()
}

func (c *Conn) takenOver() {
	c.Disconnect(mqtt.SessionTakenOver, "another connection uses this client identifier")
}

// finish detaches the connection from its session.
func (c *Conn) finish() {
	if c.session == nil {
		return
	}
	if c.endpoint != nil {
		c.endpoint.Close()
	}
	c.b.work(func(t *Turn) {
		c.b.detach(t, c)
		c.logEnded()
		c.closeAcks(t)
		c.b.detached(c)
	})
}

// loopback says whether the client is on this machine.
func (c *Conn) loopback() bool { return transport.IsLoopback(c.tr.RemoteAddr()) }

func (c *Conn) remote() slog.Value { return slog.StringValue(c.tr.RemoteAddr().String()) }

// Gone says whether the connection is closing or has failed: nothing more can be told
// to the client on it.
func (c *Conn) Gone() bool { return c.tr.Gone() }

// TooManyLevels says whether a topic name has more levels than the broker takes.
func (c *Conn) TooManyLevels(topic []byte) bool {
	return topicLevels(topic) > c.b.limits.MaxTopicLevels
}

// ClientID is the client's identifier, given or assigned.
func (c *Conn) ClientID() string { return c.clientID }

// Version is the MQTT version that the client speaks.
func (c *Conn) Version() mqtt.Version { return c.version }

// Now is the broker's clock: milliseconds since it started, never stepping back.
func (c *Conn) Now() int64 { return c.b.Now() }

// Identity is what the Authorizer said the client is.
func (c *Conn) Identity() any { return c.identity }
