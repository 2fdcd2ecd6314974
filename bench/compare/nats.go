package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// natsClient asks a NATS key-value bucket as its client library does: a GET is a
// direct get of the stream beneath, a PUT a publish that JetStream acknowledges.
type natsClient struct {
	*connection
	feed
	size     int
	expected []byte // of a GET: the value; of a PUT: how an acknowledgement begins
}

const natsInbox = "_INBOX.bench"

// dialNATS connects; each connection has an inbox of its own.
func dialNATS(addr string, id int, s *script) (*natsClient, error) {
	inbox := fmt.Sprint(natsInbox, ".", id)
	c, err := dialNATSInbox(addr, inbox)
	if err != nil {
		return nil, err
	}
	n := &natsClient{connection: c, size: s.window, expected: []byte(`{"stream":"KV_bench"`)}
	if s.verb == "GET" {
		n.expected = []byte(s.value)
	}
	n.feed = newFeed(s, func(dst []byte, keys []string) []byte {
		for _, key := range keys {
			if s.verb == "GET" {
				dst = fmt.Appendf(dst, "PUB $JS.API.DIRECT.GET.KV_bench.$KV.bench.%s %s 0\r\n\r\n", key, inbox)
			} else {
				dst = fmt.Appendf(dst, "PUB $KV.bench.%s %s %d\r\n%s\r\n", key, inbox, len(s.value), s.value)
			}
		}
		return dst
	})
	return n, nil
}

func dialNATSInbox(addr, inbox string) (*connection, error) {
	c, err := dial(addr, 64<<10)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	defer c.SetDeadline(time.Time{})
	if err := c.fill(); err != nil { // INFO
		return nil, err
	}
	c.r = c.w
	c.out = fmt.Appendf(c.out, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\nSUB %s 1\r\nPING\r\n", inbox)
	if err := c.send(); err != nil {
		return nil, err
	}
	for !bytes.HasSuffix(c.in[c.r:c.w], []byte("PONG\r\n")) {
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
	c.r = c.w
	return c, nil
}

// natsMessage is what the server delivers.
type natsMessage struct {
	reply   []byte // where to acknowledge it, if anywhere
	headers []byte
	payload []byte
}

var errNATS = errors.New("nats")

// message gives the next message that has been read whole; ok is false if there
// is none. A PING is answered with the next write.
func (c *connection) message(m *natsMessage) (ok bool, err error) {
	for {
		b := c.in[c.r:c.w]
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			return false, nil
		}
		line := b[:end-1]
		switch {
		case bytes.HasPrefix(line, []byte("MSG ")), bytes.HasPrefix(line, []byte("HMSG ")):
			var word [6][]byte // HMSG subject sid [reply] headers total
			n := 0
			for f := range bytes.SplitSeq(line, []byte(" ")) {
				if n < len(word) {
					word[n] = f
					n++
				}
			}
			total, err := strconv.Atoi(string(word[n-1]))
			if err != nil {
				return false, fmt.Errorf("%w: %q", errNATS, line)
			}
			if len(b) < end+1+total+2 {
				return false, nil
			}
			body, head, fixed := b[end+1:end+1+total], 0, 4
			if line[0] == 'H' {
				head, _ = strconv.Atoi(string(word[n-2]))
				fixed = 5
			}
			m.reply = nil
			if n > fixed {
				m.reply = word[3]
			}
			m.headers, m.payload = body[:head], body[head:]
			c.r += end + 1 + total + 2
			return true, nil
		case bytes.Equal(line, []byte("PING")):
			c.out = append(c.out, "PONG\r\n"...)
		case bytes.HasPrefix(line, []byte("-ERR")):
			return false, fmt.Errorf("%w: %s", errNATS, line)
		}
		c.r += end + 1
	}
}

func (c *natsClient) exchange(h *histogram) error {
	c.out = c.feed.next(c.out)
	start := time.Now()
	if err := c.send(); err != nil {
		return err
	}
	var m natsMessage
	for answers := 0; answers < c.size; {
		if err := c.fill(); err != nil {
			return err
		}
		before := answers
		for {
			ok, err := c.message(&m)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if !bytes.HasPrefix(m.payload, c.expected) {
				return fmt.Errorf("answer %.80q %.60q", m.headers, m.payload)
			}
			answers++
		}
		if answers > before {
			h.add(time.Since(start), answers-before)
		}
	}
	return nil
}

func (c *natsClient) close() { c.Close() }

// natsCall makes one request of the JetStream API.
func natsCall(addr, subject, body string) error {
	c, err := dialNATSInbox(addr, natsInbox)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	c.out = fmt.Appendf(c.out, "PUB %s %s %d\r\n%s\r\n", subject, natsInbox, len(body), body)
	if err := c.send(); err != nil {
		return err
	}
	var m natsMessage
	for {
		ok, err := c.message(&m)
		if err != nil {
			return err
		}
		if ok {
			break
		}
		if err := c.fill(); err != nil {
			return err
		}
	}
	if bytes.Contains(m.payload, []byte(`"error"`)) || bytes.HasPrefix(m.headers, []byte("NATS/1.0 503")) {
		return fmt.Errorf("%w: %s: %s%s", errNATS, subject, m.headers, m.payload)
	}
	return nil
}

// createBucket creates the key-value bucket as the client library would: history
// of one, on disk, direct gets allowed.
func createBucket(addr string) error {
	return natsCall(addr, "$JS.API.STREAM.CREATE.KV_bench", `{"name":"KV_bench","subjects":["$KV.bench.>"],"retention":"limits","storage":"file",`+
		`"max_msgs_per_subject":1,"max_msgs":-1,"max_bytes":-1,"max_consumers":-1,"max_age":0,"num_replicas":1,"discard":"new",`+
		`"allow_rollup_hdrs":true,"deny_delete":true,"allow_direct":true}`)
}
