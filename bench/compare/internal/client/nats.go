package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
)

// natsClient asks a NATS key-value bucket as its client library does: a GET is a
// direct get of the stream beneath, a PUT a publish that JetStream acknowledges.
type natsClient struct {
	*Connection
	feed
	size     int
	expected []byte // of a GET: the value; of a PUT: how an acknowledgement begins
}

// NATSInbox begins the subjects of the clients' inboxes.
const NATSInbox = "_INBOX.bench"

// DialNATS connects; each connection has an inbox of its own.
func DialNATS(addr string, id int, s *Script) (*natsClient, error) {
	inbox := fmt.Sprint(NATSInbox, ".", id)
	c, err := DialNATSInbox(addr, inbox)
	if err != nil {
		return nil, err
	}
	n := &natsClient{Connection: c, size: s.Window, expected: []byte(`{"stream":"KV_bench"`)}
	if s.Verb == "GET" {
		n.expected = []byte(s.Value)
	}
	n.feed = newFeed(s, func(dst []byte, keys []string) []byte {
		for _, key := range keys {
			if s.Verb == "GET" {
				dst = fmt.Appendf(dst, "PUB $JS.API.DIRECT.GET.KV_bench.$KV.bench.%s %s 0\r\n\r\n", key, inbox)
			} else {
				dst = fmt.Appendf(dst, "PUB $KV.bench.%s %s %d\r\n%s\r\n", key, inbox, len(s.Value), s.Value)
			}
		}
		return dst
	})
	return n, nil
}

// DialNATSInbox connects and subscribes to a subject.
func DialNATSInbox(addr, inbox string) (*Connection, error) {
	c, err := dial(addr, 64<<10)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(Patience))
	defer c.SetDeadline(time.Time{})
	if err := c.Fill(); err != nil { // INFO
		return nil, err
	}
	c.r = c.w
	c.Out = fmt.Appendf(c.Out, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\nSUB %s 1\r\nPING\r\n", inbox)
	if err := c.Send(); err != nil {
		return nil, err
	}
	for !bytes.HasSuffix(c.in[c.r:c.w], []byte("PONG\r\n")) {
		if err := c.Fill(); err != nil {
			return nil, err
		}
	}
	c.r = c.w
	return c, nil
}

// NATSMessage is what the server delivers.
type NATSMessage struct {
	Reply   []byte // where to acknowledge it, if anywhere
	headers []byte
	Payload []byte
}

var errNATS = errors.New("nats")

// Message gives the next message that has been read whole; ok is false if there
// is none. A PING is answered with the next write.
func (c *Connection) Message(m *NATSMessage) (ok bool, err error) {
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
			m.Reply = nil
			if n > fixed {
				m.Reply = word[3]
			}
			m.headers, m.Payload = body[:head], body[head:]
			c.r += end + 1 + total + 2
			return true, nil
		case bytes.Equal(line, []byte("PING")):
			c.Out = append(c.Out, "PONG\r\n"...)
		case bytes.HasPrefix(line, []byte("-ERR")):
			return false, fmt.Errorf("%w: %s", errNATS, line)
		}
		c.r += end + 1
	}
}

func (c *natsClient) Exchange(h *latency.Histogram) error {
	c.Out = c.feed.next(c.Out)
	start := time.Now()
	if err := c.Send(); err != nil {
		return err
	}
	var m NATSMessage
	for answers := 0; answers < c.size; {
		if err := c.Fill(); err != nil {
			return err
		}
		before := answers
		for {
			ok, err := c.Message(&m)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if !bytes.HasPrefix(m.Payload, c.expected) {
				return fmt.Errorf("answer %.80q %.60q", m.headers, m.Payload)
			}
			answers++
		}
		if answers > before {
			h.Add(time.Since(start), answers-before)
		}
	}
	return nil
}

// CallNATS makes one request of the JetStream API.
func CallNATS(addr, subject, body string) error {
	_, err := askNATS(addr, subject, body)
	return err
}

// askNATS is CallNATS with the answer.
func askNATS(addr, subject, body string) (answer []byte, err error) {
	c, err := DialNATSInbox(addr, NATSInbox)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(Patience))
	c.Out = fmt.Appendf(c.Out, "PUB %s %s %d\r\n%s\r\n", subject, NATSInbox, len(body), body)
	if err := c.Send(); err != nil {
		return nil, err
	}
	var m NATSMessage
	for {
		ok, err := c.Message(&m)
		if err != nil {
			return nil, err
		}
		if ok {
			break
		}
		if err := c.Fill(); err != nil {
			return nil, err
		}
	}
	if bytes.Contains(m.Payload, []byte(`"error"`)) || bytes.HasPrefix(m.headers, []byte("NATS/1.0 503")) {
		return nil, fmt.Errorf("%w: %s: %s%s", errNATS, subject, m.headers, m.Payload)
	}
	return m.Payload, nil
}

// CreateBucket creates the key-value bucket as the client library would: history
// of one, on disk, on so many servers, direct gets allowed.
func CreateBucket(addr string, replicas int) error {
	return CallNATS(addr, "$JS.API.STREAM.CREATE.KV_bench", `{"name":"KV_bench","subjects":["$KV.bench.>"],"retention":"limits","storage":"file",`+
		`"max_msgs_per_subject":1,"max_msgs":-1,"max_bytes":-1,"max_consumers":-1,"max_age":0,"num_replicas":`+strconv.Itoa(replicas)+`,"discard":"new",`+
		`"allow_rollup_hdrs":true,"deny_delete":true,"allow_direct":true}`)
}

// BucketLeader is the name of the server that leads the bucket of a cluster.
func BucketLeader(addr string) (string, error) {
	answer, err := askNATS(addr, "$JS.API.STREAM.INFO.KV_bench", "")
	if err != nil {
		return "", err
	}
	var info struct {
		Cluster struct {
			Leader string `json:"leader"`
		} `json:"cluster"`
	}
	if err := json.Unmarshal(answer, &info); err != nil || info.Cluster.Leader == "" {
		return "", fmt.Errorf("%w: no server leads the bucket: %s", errNATS, answer)
	}
	return info.Cluster.Leader, nil
}
