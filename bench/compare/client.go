package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// patience is how long anything may take before it counts as failed.
const patience = 15 * time.Second

// client is one connection of a closed loop.
type client interface {
	// exchange sends the next window of requests in one write, reads all of their
	// answers, and adds to h how long each took.
	exchange(h *histogram) error
	close()
}

// script is what a connection asks for, over and over: windows of requests, each
// for other keys.
type script struct {
	verb   string // GET or SET
	keys   []string
	value  string
	window int // requests under way at once
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

func newFeed(s *script, encode func(dst []byte, keys []string) []byte) feed {
	f := feed{encode: encode, keys: s.windows()}
	if len(s.keys) <= cachedKeys {
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
func (s *script) windows() [][]string {
	var all [][]string
	for at := 0; at < len(s.keys); at += s.window {
		var w []string
		for i := range s.window {
			w = append(w, s.keys[(at+i)%len(s.keys)])
		}
		all = append(all, w)
	}
	return all
}

// connection is a socket with what has been read from it and not yet used.
type connection struct {
	net.Conn
	in   []byte
	r, w int // in[r:w] is unread
	out  []byte
}

// overTLS begins the address of a server that speaks TLS.
const overTLS = "mqtts://"

func dial(addr string, buffer int) (*connection, error) {
	host, encrypted := strings.CutPrefix(addr, overTLS)
	var c net.Conn
	var err error
	if d := (&net.Dialer{Timeout: patience}); encrypted {
		// Whom it talks to it knows: it has started the server itself.
		c, err = tls.DialWithDialer(d, "tcp", host, &tls.Config{InsecureSkipVerify: true, DynamicRecordSizingDisabled: true})
	} else {
		c, err = d.Dial("tcp", host)
	}
	if err != nil {
		return nil, err
	}
	return &connection{Conn: c, in: make([]byte, buffer)}, nil
}

// fill reads once, after making room.
func (c *connection) fill() error {
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

// packet gives the next MQTT packet that has been read; n is 0 if there is none.
func (c *connection) packet() (header byte, body []byte, n int) {
	header, body, n = wire.Split(c.in[c.r:c.w])
	c.r += n
	return header, body, n
}

// next waits for the next MQTT packet.
func (c *connection) next() (header byte, body []byte, err error) {
	for {
		if header, body, n := c.packet(); n > 0 {
			return header, body, nil
		}
		if err := c.fill(); err != nil {
			return 0, nil, err
		}
	}
}

// send writes what is in out.
func (c *connection) send() error {
	_, err := c.Write(c.out)
	c.out = c.out[:0]
	return err
}

// expect waits for a packet of a type and refuses a reason code that is a failure.
func (c *connection) expect(want byte) error {
	header, body, err := c.next()
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

// dialMQTT connects as a client. expiry is its session's, in seconds.
func dialMQTT(addr, id string, expiry uint32, buffer int) (*connection, error) {
	c, err := dial(addr, buffer)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	c.out = wire.AppendConnect(c.out, id, expiry, 0)
	if err := errors.Join(c.send(), c.expect(wire.Connack)); err != nil {
		c.Close()
		return nil, fmt.Errorf("CONNECT: %w", err)
	}
	c.SetDeadline(time.Time{})
	return c, nil
}

// subscribe subscribes to one filter and waits for the SUBACK.
func (c *connection) subscribe(filter string, qos byte) error {
	c.SetDeadline(time.Now().Add(patience))
	defer c.SetDeadline(time.Time{})
	c.out = wire.AppendSubscribe(c.out, 1, filter, qos)
	if err := errors.Join(c.send(), c.expect(wire.Suback)); err != nil {
		return fmt.Errorf("SUBSCRIBE %s: %w", filter, err)
	}
	return nil
}

// mqttClient asks the state store: a PUBLISH at QoS 1, its PUBACK, the response
// at QoS 1 and its PUBACK, which leaves with the next window.
type mqttClient struct {
	*connection
	feed
	size     int // requests in a window
	expected []byte
	message  wire.Message
}

// responseTopic is where a client's answers come.
func responseTopic(id string) string {
	return "clients/" + id + "/services/statestore/_any_/command/invoke/response"
}

func dialStore(addr, id string, s *script) (*mqttClient, error) {
	c, err := dialMQTT(addr, id, 0, 64<<10)
	if err != nil {
		return nil, err
	}
	m := &mqttClient{connection: c, size: s.window, expected: []byte("+OK\r\n")}
	if s.verb == "GET" {
		m.expected = wire.AppendBlob(nil, s.value)
	}
	topic := responseTopic(id)
	m.feed = newFeed(s, func(dst []byte, keys []string) []byte {
		for i, key := range keys {
			if s.verb == "GET" {
				dst = wire.AppendRequest(dst, uint16(i+1), topic, "", "GET", key)
			} else {
				dst = wire.AppendRequest(dst, uint16(i+1), topic, "1700000000000:1:bench", "SET", key, s.value)
			}
		}
		return dst
	})
	return m, m.subscribe(topic, 1)
}

func (c *mqttClient) exchange(h *histogram) error {
	c.out = c.feed.next(c.out)
	start := time.Now()
	if err := c.send(); err != nil {
		return err
	}
	for pubacks, responses := 0, 0; pubacks < c.size || responses < c.size; {
		if err := c.fill(); err != nil {
			return err
		}
		before := responses
		for {
			header, body, n := c.packet()
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
				c.out = wire.AppendAck(c.out, wire.Puback, c.message.ID)
				responses++
			default:
				return fmt.Errorf("packet %#x", header)
			}
		}
		if responses > before {
			h.add(time.Since(start), responses-before)
		}
	}
	return nil
}

func (c *mqttClient) close() { c.Close() }

// redisClient speaks RESP. An answer's bytes are known beforehand.
type redisClient struct {
	*connection
	feed
	size     int
	expected []byte
}

func dialRedis(addr string, s *script) (*redisClient, error) {
	c, err := dial(addr, 64<<10)
	if err != nil {
		return nil, err
	}
	r := &redisClient{connection: c, size: s.window, expected: []byte("+OK\r\n")}
	if s.verb == "GET" {
		r.expected = wire.AppendBlob(nil, s.value)
	}
	r.feed = newFeed(s, func(dst []byte, keys []string) []byte {
		for _, key := range keys {
			if s.verb == "GET" {
				dst = wire.AppendCommand(dst, "GET", key)
			} else {
				dst = wire.AppendCommand(dst, "SET", key, s.value)
			}
		}
		return dst
	})
	return r, nil
}

func (c *redisClient) exchange(h *histogram) error {
	c.out = c.feed.next(c.out)
	start := time.Now()
	if err := c.send(); err != nil {
		return err
	}
	for answers := 0; answers < c.size; {
		if err := c.fill(); err != nil {
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
			h.add(time.Since(start), answers-before)
		}
	}
	return nil
}

func (c *redisClient) close() { c.Close() }
