package bridge_test

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// answering is the URL of a broker that answers each CONNECT with these bytes, and then does
// something with the connection before it closes it.
func answering(t *testing.T, says string, then func(net.Conn)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				_, _ = nc.Read(make([]byte, 1000)) // the CONNECT
				_, _ = nc.Write([]byte(says))
				then(nc)
			}()
		}
	}()
	return "mqtt://" + l.Addr().String()
}

// A broker at the other end that breaks the protocol loses its connection, and costs this
// broker nothing but a line in the log.
func TestBrokerThatBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	connack := mqtt.AppendConnack(nil, mqtt.V5, &mqtt.Connack{})
	with := func(packets ...string) string { return string(connack) + strings.Join(packets, "") }
	publish := func(m mqtttest.Message) string { return string(mqtttest.EncodePublish(mqtt.V5, m)) }
	for name, test := range map[string]struct{ says, log string }{
		"nothing":                         {"", "sends no CONNACK: EOF"},
		"HTTP":                            {"HTTP/1.1 400 Bad Request\r\n\r\n", "sends no CONNACK"},
		"no CONNACK":                      {"\xd0\x00", "answers CONNECT with PINGRESP"},
		"a refusal":                       {string(mqtt.AppendConnack(nil, mqtt.V5, &mqtt.Connack{Code: mqtt.Banned, ReasonString: "go away"})), "answers CONNACK Banned (0x8A): go away"},
		"Receive Maximum 0":               {"\x20\x06\x00\x00\x03\x21\x00\x00", "sends no CONNACK"},
		"a second CONNACK":                {with(string(connack)), "sends CONNACK, which a bridge does not await"},
		"a DISCONNECT":                    {with(string(mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.SessionTakenOver}))), "answers DISCONNECT Session taken over (0x8E)"},
		"a packet that only clients send": {with("\xc0\x00"), "the other broker: mqtt:"},
		"a packet of 256 MiB":             {with("\x30\xff\xff\xff\x7f"), "the other broker: mqtt: Packet too large"},
		"a length of five bytes":          {with("\x30\xff\xff\xff\xff\x01"), "the other broker: mqtt: Malformed Packet"},
		"a topic alias":                   {with(publish(mqtttest.Message{TopicAlias: 1})), "uses a topic alias that it has not been given"},
		"a topic with a wildcard":         {with(publish(mqtttest.Message{Topic: "down/#"})), "the other broker: mqtt:"},
		"an AUTH":                         {with(string(mqtt.AppendAuth(nil, &mqtt.Auth{Code: mqtt.ContinueAuthentication}))), "the other broker"},
		"QoS 3":                           {with("\x36\x05\x00\x01a\x00\x01"), "the other broker: mqtt:"},
		"acknowledgements of nothing": {with("\x40\x02\x00\x07", "\x50\x02\x00\x07", "\x62\x02\x00\x07", "\x70\x02\x00\x07", "\x90\x04\xff\x00\x00\x00", "\xe0\x00"),
			"answers DISCONNECT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := answering(t, test.says, func(nc net.Conn) {
				if test.says != "" {
					_, _ = nc.Read(make([]byte, 1000)) // until the bridge has read it
				}
			})
			near, log := start(t, bridge.Config{Name: "plant", URL: url, Topics: []bridge.Topic{{Filter: "#", In: true, QoS: 2}}})
			awaitLog(t, log, test.log)
			mqtttest.Connect(t, near.Addr).Ping()
		})
	}
}

// The log says of each node why it was not reached, without what is secret in its URL.
func TestLogDoesNotQuoteSecretsOfURLs(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2} {
		var nodes, urls []string
		for range n {
			node := "ws://" + testserver.FreeAddress() + "/?"
			nodes, urls = append(nodes, node+"…"), append(urls, node+"token=s3cret")
		}
		_, log := start(t, bridge.Config{Name: "plant", URL: strings.Join(urls, ","), Topics: []bridge.Topic{{Filter: "#", In: true}}})
		for _, node := range nodes {
			awaitLog(t, log, node)
		}
		awaitLog(t, log, "connection refused")
		if strings.Contains(log.String(), "s3cret") {
			t.Errorf("the log has a secret:\n%s", log)
		}
	}
}

// A broker that reads nothing makes the bridge hold a bounded part of what is for it: messages
// at QoS 0 are dropped beyond it, and others wait in their queue.
func TestBrokerThatReadsNothing(t *testing.T) {
	t.Parallel()
	connack := mqtt.AppendConnack(nil, mqtt.V5, &mqtt.Connack{})
	url := answering(t, string(connack), func(net.Conn) { <-t.Context().Done() })
	near, log := start(t, bridge.Config{Name: "plant", URL: url, Topics: []bridge.Topic{{Filter: "#", Out: true, QoS: 1}}})
	awaitConnected(t, near.Addr, "plant")
	c := mqtttest.Connect(t, near.Addr)
	payload := strings.Repeat("x", 1<<20)
	const few = 12
	for range few {
		c.Publish(mqtttest.Message{Topic: "at-least-once", Payload: payload, QoS: 1})
	}
	for !strings.Contains(log.String(), "it has QoS 0, and the other broker does not take messages as fast as they come") {
		c.Publish(mqtttest.Message{Topic: "at-most-once", Payload: payload})
	}
	c.Subscribe("$SYS/broker/messages/queued", 0)
	c.Await("the messages at QoS 1 wait", func(p *mqtttest.Packet) bool { return p.Publish != nil && p.Publish.Payload == strconv.Itoa(few) })
}
