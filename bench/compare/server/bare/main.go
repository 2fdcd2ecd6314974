// Command bare answers the state store's requests as fast as Go can on a
// socket: it is no server, it is the limit that one is measured against.
//
// A goroutine per connection reads what is there, finds verb, response topic
// and correlation data of each PUBLISH, appends the PUBACK and the response that
// Holdfast would send, byte for byte but for the version's digits, reads over
// the client's PUBACKs, and writes once the input is used up. One value stands
// for all keys. A KEYNOTIFY makes a connection a watcher, and a SET writes the
// same notification to one watcher after the other.
package main

import (
	"crypto/tls"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

func main() {
	cert := flag.String("cert", "", "PEM `FILE` with a certificate: speak TLS")
	key := flag.String("key", "", "PEM `FILE` with its private key")
	flag.Parse()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := &store{}
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			log.Fatal(err)
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, DynamicRecordSizingDisabled: true})
	}
	fmt.Println("listening on", l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go s.serve(conn)
	}
}

// store is one value and its watchers.
type store struct {
	reply atomic.Pointer[[]byte] // GET's answer
	value atomic.Pointer[[]byte]

	mu       sync.Mutex
	watchers []*connection // under mu
}

type connection struct {
	store   *store
	conn    net.Conn
	answers wire.Answers
	out     []byte
	id      uint16
	client  string
	notify  string // topic of its notifications once it watches
}

// readBuffers are lent to connections that have something to read.
var readBuffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

func (s *store) serve(conn net.Conn) {
	c := &connection{store: s, conn: conn}
	defer conn.Close()
	defer s.forget(c)
	var r input = &plainReader{conn: conn}
	if tcp, ok := conn.(*net.TCPConn); ok {
		raw, err := tcp.SyscallConn()
		if err != nil {
			return
		}
		r = newReader(raw)
	}
	for r.fill() {
		for {
			header, body, n := wire.Split(r.buffered())
			if n == 0 {
				break
			}
			c.packet(header, body)
			r.discard(n)
		}
		if len(c.out) > 0 {
			if _, err := conn.Write(c.out); err != nil {
				return
			}
			c.out = c.out[:0]
		}
	}
}

func (c *connection) packet(header byte, body []byte) {
	switch header & 0xF0 {
	case wire.Publish:
		c.request(header, body)
	case wire.Puback:
		_ = binary.BigEndian.Uint16(body)
	case wire.Connect:
		rest := body[11+int(body[10]):] // after the properties
		c.client = string(rest[2 : 2+int(binary.BigEndian.Uint16(rest))])
		c.out = append(c.out, wire.Connack, 3, 0, 0, 0)
	case wire.Subscribe & 0xF0:
		c.out = append(c.out, wire.Suback, 4, body[0], body[1], 0, 1)
	case wire.Pingreq:
		c.out = append(c.out, wire.Pingresp, 0)
	}
}

func (c *connection) request(header byte, body []byte) {
	var m wire.Message
	m.Parse(header, body)
	topic, correlation := m.Request()
	verb, value := wire.Command(m.Payload)
	payload := []byte("+OK\r\n")
	switch verb[0] {
	case 'G':
		if p := c.store.reply.Load(); p != nil {
			payload = *p
		}
	case 'S':
		c.store.set(value)
	case 'K':
		c.watch(m.Payload)
	}
	c.id++
	c.out = wire.AppendAck(c.out, wire.Puback, m.ID)
	c.out = c.answers.AppendResponse(c.out, max(c.id, 1), topic, correlation, verb[0] != 'K', payload)
	if verb[0] == 'S' {
		c.store.tell(c)
	}
}

func (s *store) set(value []byte) {
	if p := s.value.Load(); p != nil && string(*p) == string(value) {
		return
	}
	reply, copied := wire.AppendBlob(nil, value), append([]byte(nil), value...)
	s.reply.Store(&reply)
	s.value.Store(&copied)
}

func (c *connection) watch(payload []byte) {
	key := wire.Key(payload)
	c.notify = wire.NotifyTopic(c.client, string(key))
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	c.store.watchers = append(c.store.watchers, c)
}

// tell answers the requester and then writes the notification to each watcher.
func (s *store) tell(from *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watchers) == 0 {
		return
	}
	from.conn.Write(from.out)
	from.out = from.out[:0]
	payload := wire.NotifyPayload(*s.value.Load())
	var packet []byte
	for _, w := range s.watchers {
		packet = wire.AppendNotification(packet[:0], 1, w.notify, payload)
		w.conn.Write(packet)
	}
}

func (s *store) forget(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.notify != "" {
		s.watchers = slices.DeleteFunc(s.watchers, func(w *connection) bool { return w == c })
	}
}
