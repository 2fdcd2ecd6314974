package routing

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
)

// jetStream is the stream that pairs publish to: on disk, with the defaults of
// its retention.
const jetStream = `{"name":"PAIRS","subjects":["pair.*"],"retention":"limits","storage":"file","max_msgs":-1,"max_bytes":-1,"max_consumers":-1,"max_age":0,"num_replicas":1,"discard":"old"}`

// joinNATS is joinMQTT for JetStream: a durable push consumer with explicit
// acknowledgements per subscriber, and publishes that are acknowledged.
func (t *traffic) joinNATS() error {
	addr := t.target.Addr
	if err := client.CallNATS(addr, "$JS.API.STREAM.CREATE.PAIRS", jetStream); err != nil {
		return err
	}
	for i := range t.subscribers {
		inbox, name := fmt.Sprint("deliver.", i), fmt.Sprint("durable-", i)
		c, err := client.DialNATSInbox(addr, inbox)
		if err != nil {
			return err
		}
		t.closers = append(t.closers, func() { c.Close() })
		config := fmt.Sprintf(`{"stream_name":"PAIRS","config":{"durable_name":%q,"deliver_subject":%q,"deliver_policy":"new","ack_policy":"explicit","max_ack_pending":1024,"replay_policy":"instant","filter_subject":%q}}`,
			name, inbox, t.filter(i))
		if err := client.CallNATS(addr, "$JS.API.CONSUMER.DURABLE.CREATE.PAIRS."+name, config); err != nil {
			return err
		}
		t.wait.Go(func() { t.fail(t.receiveNATS(c)) })
	}
	for i := range t.publishers {
		inbox := fmt.Sprint(client.NATSInbox, ".publisher-", i)
		c, err := client.DialNATSInbox(addr, inbox)
		if err != nil {
			return err
		}
		t.closers = append(t.closers, func() { c.Close() })
		t.wait.Go(func() { t.fail(t.publishNATS(c, t.topic(i), inbox)) })
	}
	// The round's end removes the stream, and its consumers with it.
	t.closers = append(t.closers, func() { client.CallNATS(addr, "$JS.API.STREAM.DELETE.PAIRS", "") })
	return nil
}

func (t *traffic) receiveNATS(c *client.Connection) error {
	figures := subscriberFigures{t: t}
	defer figures.done()
	var m client.NATSMessage
	for {
		if err := c.Fill(); err != nil {
			return t.unlessEnded(err)
		}
		got := 0
		for {
			ok, err := c.Message(&m)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			figures.got(m.Payload)
			got++
			c.Out = append(append(append(c.Out, "PUB "...), m.Reply...), " 4\r\n+ACK\r\n"...)
		}
		if len(c.Out) > 0 {
			if err := c.Send(); err != nil {
				return t.unlessEnded(err)
			}
		}
		t.delivered.Add(int64(got))
		t.gate.leave(got)
	}
}

func (t *traffic) publishNATS(c *client.Connection, subject, inbox string) error {
	var window []byte
	var stamps []int
	for range t.window {
		window = fmt.Appendf(window, "PUB %s %s %d\r\n", subject, inbox, payloadSize)
		stamps = append(stamps, len(window))
		window = append(append(window, make([]byte, payloadSize)...), "\r\n"...)
	}
	var m client.NATSMessage
	for t.gate.enter(t.window * t.copies) {
		now := uint64(time.Since(t.epoch))
		for _, at := range stamps {
			binary.LittleEndian.PutUint64(window[at:], now)
		}
		c.Out = append(c.Out, window...)
		if err := c.Send(); err != nil {
			return t.unlessEnded(err)
		}
		for acks := 0; acks < t.window; {
			ok, err := c.Message(&m)
			if err != nil {
				return err
			}
			if ok {
				acks++
			} else if err := c.Fill(); err != nil {
				return t.unlessEnded(err)
			}
		}
	}
	return nil
}
