package front

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/fronts"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mux"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
)

const (
	// hold is how long a client waits until a leader is known.
	hold = 5 * time.Second
	// lastWords is how long a client may take its last packets.
	lastWords = 2 * time.Second
)

// client is one connection. Its reader goroutine forwards what it sends; what the server sends
// comes on the goroutine of a link.
type client struct {
	front  *Front
	place  int
	scheme string
	origin *access.Origin
	conn   *transport.Conn
	stream atomic.Pointer[mux.Stream] // nil: not open yet

	up        cursor        // reader
	version   mqtt.Version  // reader, before the stream is open
	keepAlive atomic.Uint32 // seconds; 0: none
	begun     atomic.Bool   // its CONNECT has begun to come
	connected atomic.Bool   // the server has taken it
	heard     atomic.Bool   // bytes came since the last look
	held      atomic.Bool   // the reader waits for a link, not for the client
	active    time.Time     // sweep: when it was heard last
	owed      atomic.Int64  // bytes that the stream is granted when the client has taken them

	// Guarded by the lock of conn's output.
	down   cursor
	first  []byte // the beginning of the first packet, until the front has looked at it
	looked bool   // it has
	pong   bool   // a PINGRESP is due at the end of the packet
}

// serve carries a client until one of both sides ends.
func (c *client) serve() {
	why := c.run()
	if s := c.stream.Load(); s != nil {
		if errors.Is(why, io.EOF) || errors.Is(why, transport.ErrClosed) {
			_ = s.Close()
		} else {
			s.CloseWith(why.Error())
		}
	}
	c.conn.EndInput()
	// If the stream has ended, Ended lets the client take its last packets.
	if !errors.Is(why, transport.ErrClosed) && !errors.Is(why, net.ErrClosed) {
		_ = c.conn.Close()
	}
}

// run returns why it has ended.
func (c *client) run() error {
	if err := c.begin(); err != nil {
		return err
	}
	if err := c.open(); err != nil {
		return err
	}
	s := c.stream.Load()
	for {
		used, err := c.forward(s, c.conn.Buffered())
		c.conn.Discard(used)
		if err != nil {
			return err
		}
		if err := c.conn.Fill(0); err != nil {
			return err
		}
		c.heard.Store(true)
	}
}

// begin reads the beginning of the CONNECT.
func (c *client) begin() error {
	for {
		p, whole, err := parseConnect(c.conn.Buffered())
		if err != nil {
			return err
		}
		if whole {
			c.version = p.version
			c.keepAlive.Store(uint32(p.keepAlive))
			c.heard.Store(true)
			c.begun.Store(true)
			return nil
		}
		if err := c.conn.Fill(0); err != nil {
			return err
		}
	}
}

var errUnavailable = errors.New("no leader takes the client")

// open opens the client's stream.
func (c *client) open() error {
	about := fronts.About{Place: c.place, Scheme: c.scheme, Client: addrPort(c.origin.Remote)}
	if t := c.origin.TLS; t != nil && len(t.VerifiedChains) > 0 {
		about.Chain = t.PeerCertificates
	}
	payload, err := about.Append(nil)
	if err != nil {
		return err
	}
	c.held.Store(true)
	defer c.held.Store(false)
	end := time.Now().Add(hold)
	for {
		link := c.front.links.pick(end)
		if link == nil {
			c.front.unserved.Add(1)
			c.refuse()
			return transport.ErrClosed
		}
		// Otherwise a CONNECT that has waited here would be delivered after its client has
		// connected again, and would take the session from the new connection.
		if c.conn.PeerGone() {
			return io.EOF
		}
		s, err := link.Open(payload, (*receiver)(c))
		if err == nil {
			c.stream.Store(s)
			if err = s.AwaitTaken(); err == nil {
				return nil
			}
			if !errors.Is(err, mux.ErrLeaving) {
				return err // the node's log has why
			}
		}
		if time.Now().After(end) || !errors.Is(err, mux.ErrLeaving) && link.Streams() > 0 {
			c.front.unserved.Add(1)
			c.refuse()
			return errUnavailable
		}
	}
}

// refuse tells the client that no server is there.
func (c *client) refuse() {
	connack := []byte{0x20, 2, 0, 3}
	if c.version == mqtt.V5 {
		connack = []byte{0x20, 3, 0, byte(mqtt.ServerUnavailable), 0}
	}
	c.conn.Lock()
	c.conn.Append(connack)
	c.conn.Unlock()
	c.conn.Shut(lastWords)
}

func addrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		p := a.AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
	case interface{ Addr() netip.Addr }:
		p, _ := netip.ParseAddrPort(a.(net.Addr).String())
		return p
	}
	return netip.AddrPort{}
}

var pingResponse = []byte{byte(mqtt.PINGRESP) << 4, 0}

const pingRequest = byte(mqtt.PINGREQ) << 4

// forward sends the server what the client has sent, but for pings, which the front answers. used
// is less than len(p) by a byte at the most.
func (c *client) forward(s *mux.Stream, p []byte) (used int, err error) {
	from := 0
	send := func(to int) error {
		if to == from {
			return nil
		}
		err := c.write(s, p[from:to])
		from = to
		return err
	}
	for used < len(p) {
		if c.up.part == atType && p[used] == pingRequest && c.connected.Load() {
			if used+1 == len(p) {
				break
			}
			if p[used+1] == 0 {
				if err := send(used); err != nil {
					return used, err
				}
				used += 2
				from = used
				if err := c.answerPing(); err != nil {
					return used, err
				}
				continue
			}
		}
		n, _, err := c.up.take(p[used:])
		used += n
		if err != nil { // the server says so to the client
			used = len(p)
			c.up = cursor{part: inBody, left: 1<<32 - 1}
		}
	}
	return used, send(used)
}

// errNoMemory ends a client whose bytes the leader does not take.
var errNoMemory = errors.New("the front has no memory for what its clients send")

// write sends the server bytes. What it does not take at once is charged until it has.
func (c *client) write(s *mux.Stream, p []byte) error {
	n, err := s.TryWrite(p)
	if err != nil || n == len(p) {
		return err
	}
	if !c.front.holdInput() {
		c.front.slow.Add(1)
		return errNoMemory
	}
	defer c.front.releaseInput()
	c.held.Store(true)
	defer c.held.Store(false)
	_, err = s.Write(p[n:])
	return err
}

// answerPing sends a PINGRESP, between two packets of the server.
func (c *client) answerPing() error {
	c.front.pings.Add(1)
	c.conn.Lock()
	if c.down.part == atType {
		c.conn.Append(pingResponse)
	} else {
		c.pong = true
	}
	c.conn.Unlock()
	if c.conn.Size() > mux.Window {
		return c.conn.WaitOutput(mux.Window)
	}
	c.conn.Flush()
	return nil
}

// receiver is what the server sends, on the goroutine of a link.
type receiver client

// Data implements mux.Receiver.
func (r *receiver) Data(p []byte) {
	c := (*client)(r)
	size := int64(len(p))
	c.conn.Lock()
	for len(p) > 0 {
		if !c.looked {
			c.look(p)
		}
		n, whole, err := c.down.take(p)
		if err != nil { // not of this server
			n = len(p)
		}
		c.conn.Append(p[:n])
		p = p[n:]
		if whole {
			c.endOfPacket()
		}
	}
	c.conn.Unlock()
	if c.owed.Add(size) >= mux.Window/2 && !c.conn.WantDrained() {
		c.drained()
	}
	c.conn.FlushSoon()
}

// look keeps the beginning of the first packet. Needs the output's lock.
func (c *client) look(p []byte) {
	c.first = append(c.first, p[:min(len(p), maxConnack-len(c.first))]...)
	if len(c.first) == maxConnack {
		c.judge()
	}
}

// endOfPacket needs the output's lock.
func (c *client) endOfPacket() {
	if !c.looked {
		c.judge()
	}
	if c.pong {
		c.pong = false
		c.conn.Append(pingResponse)
	}
}

// judge looks at the first packet. Needs the output's lock.
func (c *client) judge() {
	taken, keepAlive, asked := parseConnack(c.first, c.version)
	c.looked, c.first = true, nil
	if asked {
		c.keepAlive.Store(uint32(keepAlive))
	}
	if taken {
		c.connected.Store(true)
	}
}

// drained grants the stream what the client has taken. It is transport.Options.Drained.
func (c *client) drained() {
	if s := c.stream.Load(); s != nil {
		s.Grant(int(c.owed.Swap(0)))
	}
}

// Ended implements mux.Receiver.
func (r *receiver) Ended(error) { r.conn.Shut(lastWords) }

// disconnect ends the connection; why is for the server.
func (c *client) disconnect(code mqtt.ReasonCode, why string) {
	if s := c.stream.Load(); s != nil {
		s.CloseWith(why)
	}
	c.conn.Lock()
	if c.connected.Load() && c.version == mqtt.V5 && c.down.part == atType {
		c.conn.Append([]byte{byte(mqtt.DISCONNECT) << 4, 1, byte(code)})
	}
	c.conn.Unlock()
	c.conn.Shut(lastWords)
}

// checkSilence closes the connection of a client that has been silent for one and a half times its
// keep-alive [MQTT-3.1.2-22], or hasn't sent a CONNECT in time. The sweep's.
func (c *client) checkSilence(now time.Time) {
	if c.heard.Swap(false) || c.held.Load() {
		c.active = now
	}
	keepAlive := time.Duration(c.keepAlive.Load()) * time.Second
	switch silent := now.Sub(c.active); {
	case !c.begun.Load():
		if silent > c.front.o.ConnectTimeout {
			_ = c.conn.Close()
		}
	case keepAlive > 0 && silent > keepAlive*3/2 && c.connected.Load():
		c.front.silent.Add(1)
		c.disconnect(mqtt.KeepAliveTimeout, "nothing was heard for one and a half times the keep-alive")
	}
}
