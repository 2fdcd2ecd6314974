// Package client has the clients of all protocols: what asks a server in a closed loop, and
// what publishes and subscribes. They encode beforehand and parse no more than they must.
package client

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// Patience is how long anything may take before it counts as failed.
const Patience = 15 * time.Second

// Client is one connection of a closed loop.
type Client interface {
	// Exchange sends the next window of requests in one write, reads all of their
	// answers, and adds to h how long each took.
	Exchange(h *latency.Histogram) error
	Close() error
}

// Script is what a connection asks for, over and over: windows of requests, each
// for other keys.
type Script struct {
	Verb   string // GET or SET
	Keys   []string
	Value  string
	Window int // requests under way at once
}

// cachedKeys is up to how many keys of a connection its windows are encoded
// before they are timed. Beyond, memory matters more.
const cachedKeys = 2000

// feed gives a script's windows, over and over.
type feed struct {
	encode  func(dst []byte, keys []string) []byte
	keys    [][]string
	encoded [][]byte // nil: encode as needed
	at      int
}

func newFeed(s *Script, encode func(dst []byte, keys []string) []byte) feed {
	f := feed{encode: encode, keys: s.windows()}
	if len(s.Keys) <= cachedKeys {
		for _, keys := range f.keys {
			f.encoded = append(f.encoded, encode(nil, keys))
		}
	}
	return f
}

// next appends the next window.
func (f *feed) next(dst []byte) []byte {
	at := f.at
	f.at = (f.at + 1) % len(f.keys)
	if f.encoded != nil {
		return append(dst, f.encoded[at]...)
	}
	return f.encode(dst, f.keys[at])
}

// windows gives the script's keys in windows; every key occurs, some twice if
// their number isn't a multiple of the window's.
func (s *Script) windows() [][]string {
	var all [][]string
	for at := 0; at < len(s.Keys); at += s.Window {
		var w []string
		for i := range s.Window {
			w = append(w, s.Keys[(at+i)%len(s.Keys)])
		}
		all = append(all, w)
	}
	return all
}

// Connection is a socket with what has been read from it and not yet used.
type Connection struct {
	net.Conn
	in   []byte
	r, w int // in[r:w] is unread
	Out  []byte
}

// OverTLS begins the address of a server that speaks TLS.
const OverTLS = "mqtts://"

func dial(addr string, buffer int) (*Connection, error) {
	host, encrypted := strings.CutPrefix(addr, OverTLS)
	var c net.Conn
	var err error
	if d := (&net.Dialer{Timeout: Patience}); encrypted {
		// Whom it talks to it knows: it has started the server itself.
		c, err = tls.DialWithDialer(d, "tcp", host, &tls.Config{InsecureSkipVerify: true, DynamicRecordSizingDisabled: true})
	} else {
		c, err = d.Dial("tcp", host)
	}
	if err != nil {
		return nil, err
	}
	return &Connection{Conn: c, in: make([]byte, buffer)}, nil
}

// Fill reads once, after making room.
func (c *Connection) Fill() error {
	if c.r > 0 {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
	if c.w == len(c.in) {
		c.in = append(c.in, make([]byte, len(c.in))...)
	}
	n, err := c.Read(c.in[c.w:])
	if n == 0 && err == nil {
		err = io.ErrNoProgress
	}
	c.w += n
	return err
}

// Packet gives the next MQTT packet that has been read; n is 0 if there is none.
func (c *Connection) Packet() (header byte, body []byte, n int) {
	header, body, n = wire.Split(c.in[c.r:c.w])
	c.r += n
	return header, body, n
}

// Next waits for the next MQTT packet.
func (c *Connection) Next() (header byte, body []byte, err error) {
	for {
		if header, body, n := c.Packet(); n > 0 {
			return header, body, nil
		}
		if err := c.Fill(); err != nil {
			return 0, nil, err
		}
	}
}

// Send writes what is in out.
func (c *Connection) Send() error {
	_, err := c.Write(c.Out)
	c.Out = c.Out[:0]
	return err
}

// Expect waits for a packet of a type and refuses a reason code that is a failure.
func (c *Connection) Expect(want byte) error {
	header, body, err := c.Next()
	switch {
	case err != nil:
		return err
	case header&0xF0 != want&0xF0:
		return fmt.Errorf("packet %#x instead of %#x", header, want)
	case header == wire.Connack && body[1] != 0, header == wire.Suback && body[len(body)-1] >= 0x80:
		return fmt.Errorf("refused: % x", body)
	}
	return nil
}

// DialMQTT connects as a client. expiry is its session's, in seconds.
func DialMQTT(addr, id string, expiry uint32, buffer int) (*Connection, error) {
	c, err := dial(addr, buffer)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(Patience))
	c.Out = wire.AppendConnect(c.Out, id, expiry, 0)
	if err := errors.Join(c.Send(), c.Expect(wire.Connack)); err != nil {
		c.Close()
		return nil, fmt.Errorf("CONNECT: %w", err)
	}
	c.SetDeadline(time.Time{})
	return c, nil
}

// Subscribe subscribes to one filter and waits for the SUBACK.
func (c *Connection) Subscribe(filter string, qos byte) error {
	c.SetDeadline(time.Now().Add(Patience))
	defer c.SetDeadline(time.Time{})
	c.Out = wire.AppendSubscribe(c.Out, 1, filter, qos)
	if err := errors.Join(c.Send(), c.Expect(wire.Suback)); err != nil {
		return fmt.Errorf("SUBSCRIBE %s: %w", filter, err)
	}
	return nil
}

// mqttClient asks the state store: a PUBLISH at QoS 1, its PUBACK, the response
// at QoS 1 and its PUBACK, which leaves with the next window.
type mqttClient struct {
	*Connection
	feed
	size     int // requests in a window
	expected []byte
	message  wire.Message
}

// ResponseTopic is where a client's answers come.
func ResponseTopic(id string) string {
	return "clients/" + id + "/services/statestore/_any_/command/invoke/response"
}

// DialStore connects to a state store as the client id.
func DialStore(addr, id string, s *Script) (*mqttClient, error) {
	c, err := DialMQTT(addr, id, 0, 64<<10)
	if err != nil {
		return nil, err
	}
	m := &mqttClient{Connection: c, size: s.Window, expected: []byte("+OK\r\n")}
	if s.Verb == "GET" {
		m.expected = wire.AppendBlob(nil, s.Value)
	}
	topic := ResponseTopic(id)
	m.feed = newFeed(s, func(dst []byte, keys []string) []byte {
		for i, key := range keys {
			if s.Verb == "GET" {
				dst = wire.AppendRequest(dst, uint16(i+1), topic, "", "GET", key)
			} else {
				dst = wire.AppendRequest(dst, uint16(i+1), topic, "1700000000000:1:bench", "SET", key, s.Value)
			}
		}
		return dst
	})
	return m, m.Subscribe(topic, 1)
}

func (c *mqttClient) Exchange(h *latency.Histogram) error {
	c.Out = c.feed.next(c.Out)
	start := time.Now()
	if err := c.Send(); err != nil {
		return err
	}
	for pubacks, responses := 0, 0; pubacks < c.size || responses < c.size; {
		if err := c.Fill(); err != nil {
			return err
		}
		before := responses
		for {
			header, body, n := c.Packet()
			if n == 0 {
				break
			}
			switch header & 0xF0 {
			case wire.Puback:
				if len(body) > 2 && body[2] >= 0x80 {
					return fmt.Errorf("PUBACK %#x", body[2])
				}
				pubacks++
			case wire.Publish:
				c.message.Parse(header, body)
				if !bytes.Equal(c.message.Payload, c.expected) {
					return fmt.Errorf("answer %.60q", c.message.Payload)
				}
				c.Out = wire.AppendAck(c.Out, wire.Puback, c.message.ID)
				responses++
			default:
				return fmt.Errorf("packet %#x", header)
			}
		}
		if responses > before {
			h.Add(time.Since(start), responses-before)
		}
	}
	return nil
}

// redisClient speaks RESP. An answer's bytes are known beforehand.
type redisClient struct {
	*Connection
	feed
	size     int
	expected []byte
}

// DialRedis connects to Redis.
func DialRedis(addr string, s *Script) (*redisClient, error) {
	c, err := dial(addr, 64<<10)
	if err != nil {
		return nil, err
	}
	r := &redisClient{Connection: c, size: s.Window, expected: []byte("+OK\r\n")}
	if s.Verb == "GET" {
		r.expected = wire.AppendBlob(nil, s.Value)
	}
	r.feed = newFeed(s, func(dst []byte, keys []string) []byte {
		for _, key := range keys {
			if s.Verb == "GET" {
				dst = wire.AppendCommand(dst, "GET", key)
			} else {
				dst = wire.AppendCommand(dst, "SET", key, s.Value)
			}
		}
		return dst
	})
	return r, nil
}

func (c *redisClient) Exchange(h *latency.Histogram) error {
	c.Out = c.feed.next(c.Out)
	start := time.Now()
	if err := c.Send(); err != nil {
		return err
	}
	for answers := 0; answers < c.size; {
		if err := c.Fill(); err != nil {
			return err
		}
		before := answers
		for ; c.w-c.r >= len(c.expected); answers++ {
			if !bytes.Equal(c.in[c.r:c.r+len(c.expected)], c.expected) {
				return fmt.Errorf("answer %.60q", c.in[c.r:c.w])
			}
			c.r += len(c.expected)
		}
		if c.w > c.r && c.in[c.r] != c.expected[0] {
			return fmt.Errorf("answer %.60q", c.in[c.r:c.w])
		}
		if answers > before {
			h.Add(time.Since(start), answers-before)
		}
	}
	return nil
}

// AnswerSize counts the bytes that answer one request.
func AnswerSize(addr string, s *Script) (int, error) {
	c, err := DialStore(addr, "sizes", s)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(Patience))
	c.Out = c.feed.next(c.Out)
	if err := c.Send(); err != nil {
		return 0, err
	}
	bytes := 0
	for packets := 0; packets < 2; { // PUBACK and response
		_, _, n := c.Packet()
		if n > 0 {
			packets++
			bytes += n
		} else if err := c.Fill(); err != nil {
			return 0, err
		}
	}
	return bytes, nil
}
