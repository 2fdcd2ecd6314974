package server

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// charges are what is charged to a pool of memory, by kind.
type charges map[memory.Kind]int64

func (s *Server) charges() charges {
	all := charges{}
	for _, kind := range memory.Kinds() {
		all[kind] = s.memory.UsedBy(kind)
	}
	return all
}

// Everything that clients have the server hold is charged to the pool of memory under its
// kind, and the pool is as before when it is gone: whether the clients take it away
// themselves, or vanish.
func TestThePoolIsAsBeforeWhenClientsAreGone(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		c.MaxMemory = 1 << 30
		c.Limits.TopicAliasMaximum = 10
	})
	addr := s.Addrs()[0].String()
	const large, small, many = 3 << 20, 500, 50
	payload := strings.Repeat("x", large)
	connect := func(opts ...mqtttest.Option) *mqtttest.Client { return mqtttest.Connect(t, addr, opts...) }
	ask := func(c *mqtttest.Client, args ...string) string {
		t.Helper()
		c.SendPublish(storeRequest(0, args...))
		return c.Await("the answer", func(p *mqtttest.Packet) bool {
			return p.Type == mqtt.PUBLISH && p.Publish.Topic == "responses"
		}).Publish.Payload
	}
	requester := func(opts ...mqtttest.Option) *mqtttest.Client {
		c := connect(opts...)
		c.Subscribe("responses", 0)
		return c
	}

	remove := func(keys ...string) {
		c := requester()
		for _, key := range keys {
			ask(c, "DEL", key)
		}
		c.Disconnect()
	}

	for _, test := range []struct {
		kind  memory.Kind
		what  string
		least int64                               // bytes that must be charged
		hold  func() (clients []*mqtttest.Client) // which hold something as long as they are connected
		free  func()                              // takes away what outlives them; nil: nothing does
	}{
		{memory.Unconnected, "a CONNECT without its end", 30 << 10, func() []*mqtttest.Client {
			c := mqtttest.Dial(t, addr)
			c.Write(append([]byte{0x10, 0x80, 0x80, 0x03}, make([]byte, 40<<10)...))
			return []*mqtttest.Client{c}
		}, nil},
		{memory.Input, "a PUBLISH without its end", large / 2, func() []*mqtttest.Client {
			c := connect()
			c.Write(mqtttest.EncodePublish(mqtt.V5, mqtttest.Message{Topic: "t", Payload: payload})[:large/2+1000])
			return []*mqtttest.Client{c}
		}, nil},
		{memory.Output, "messages that subscribers do not read", large, func() (all []*mqtttest.Client) {
			publisher := connect()
			for qos := range byte(3) {
				c, _ := deaf(t, s)
				c.Subscribe("unread", qos)
				all = append(all, c)
			}
			for i := range 6 {
				publisher.Publish(mqtttest.Message{Topic: "unread", QoS: 1, Payload: payload, Retain: i == 3})
			}
			publisher.Publish(mqtttest.Message{Topic: "unread", QoS: 1, Retain: true})
			return append(all, publisher)
		}, nil},
		{memory.Output, "answers that a client does not read", large, func() []*mqtttest.Client {
			writer := connect()
			writer.Offer(storeRequest(0, "SET", "unread", payload))
			c, _ := deaf(t, s)
			c.Subscribe("responses", 0)
			for i := range 6 {
				m := storeRequest(i, "GET", "unread")
				m.PacketID = uint16(100 + i)
				c.Write(mqtttest.EncodePublish(mqtt.V5, m))
			}
			return []*mqtttest.Client{c, writer}
		}, func() { remove("unread") }},
		{memory.Queues, "queues of connected clients", many*small + large, func() []*mqtttest.Client {
			publisher := connect()
			held := []*mqtttest.Client{publisher}
			for _, opts := range [][]mqtttest.Option{
				{mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks()},
				{mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks(), mqtttest.ClientID("queue"), mqtttest.SessionExpiry(1)},
			} {
				c := connect(opts...)
				c.Subscribe("queued/+", 1)
				c.Subscribe("$share/group/queued/#", 2)
				held = append(held, c)
			}
			for i := range many {
				publisher.Publish(mqtttest.Message{Topic: "queued/a", QoS: byte(1 + i%2), Payload: payload[:small], Retain: i%3 == 0})
			}
			publisher.Publish(mqtttest.Message{Topic: "queued/a", QoS: 1, Payload: payload})
			publisher.Publish(mqtttest.Message{Topic: "queued/a", QoS: 1, Retain: true})
			return held
		}, func() { connect(mqtttest.ClientID("queue")).Disconnect() }},
		{memory.Replies, "notifications that a client does not acknowledge", many * small, func() []*mqtttest.Client {
			c := requester(mqtttest.ReceiveMaximum(1), mqtttest.HoldAcks(), mqtttest.ClientID("watcher"))
			c.Offer(storeRequest(0, "KEYNOTIFY", "watched"))
			writer := requester()
			for i := range many {
				ask(writer, "SET", "watched", fmt.Sprint(i, payload[:small]))
			}
			return []*mqtttest.Client{c, writer}
		}, func() { remove("watched") }},
		{memory.Watches, "watched keys", many * 1000, func() []*mqtttest.Client {
			c := requester()
			for i := range many {
				ask(c, "KEYNOTIFY", fmt.Sprint(i, payload[:1000]))
			}
			ask(c, "KEYNOTIFY", fmt.Sprint(0, payload[:1000]), "STOP")
			ask(c, "KEYNOTIFY", "once more")
			return []*mqtttest.Client{c}
		}, nil},
		{memory.Sessions, "a will, publishes whose PUBREL is due, and a long name", 40_000, func() []*mqtttest.Client {
			c := connect(mqtttest.ClientID(payload[:1000]), mqtttest.Will(mqtttest.Message{Topic: "will", Payload: payload[:40_000]}, 0))
			for id := range uint16(many) {
				c.SendPublish(mqtttest.Message{Topic: "t", QoS: 2, PacketID: id + 1})
			}
			return []*mqtttest.Client{c}
		}, nil},
		{memory.Sessions, "sessions that end a second after their connection", 2 * 40_000, func() (all []*mqtttest.Client) {
			for i := range 2 {
				c := connect(mqtttest.ClientID(fmt.Sprint("away", i)), mqtttest.SessionExpiry(1), mqtttest.Will(mqtttest.Message{Topic: "will", Payload: payload[:40_000]}, 1))
				c.Subscribe("will", 1)
				c.SendPublish(mqtttest.Message{Topic: "t", QoS: 2, PacketID: 1})
				all = append(all, c)
			}
			return all
		}, nil},
		{memory.Sessions, "the account of a client with timers", 1, func() []*mqtttest.Client {
			c := requester(mqtttest.ClientID("timers"))
			for i := range many {
				c.Publish(mqtttest.Message{Topic: "t", QoS: 1, User: [][2]string{{delay.AfterProperty, "3600000"}, {delay.IDProperty, fmt.Sprint(i)}}})
			}
			return []*mqtttest.Client{c}
		}, func() {
			c := requester(mqtttest.ClientID("timers"))
			for i := range many {
				ask(c, "CANCEL", fmt.Sprint(i))
			}
			c.Disconnect()
		}},
		{memory.Subscriptions, "filters, and topic aliases of both sides", 3*many*1000 + 5*2000, func() []*mqtttest.Client {
			c := connect(mqtttest.TopicAliasMaximum(5))
			for i := range many {
				c.Subscribe(fmt.Sprint(i, "/", payload[:1000]), 0)
				c.Subscribe(fmt.Sprint(i, "/", payload[:1000]), 1) // again
				c.Subscribe(fmt.Sprint("$share/g/", i, "/+/", payload[:500]), 1)
			}
			c.Unsubscribe("0/"+payload[:1000], "$share/g/1/+/"+payload[:500])
			for i := range 10 {
				m := mqtt.Publish{Topic: []byte(fmt.Sprint(2+i%7, "/", payload[:1000]))}
				m.Props.TopicAlias, m.Props.HasTopicAlias = uint16(1+i%5), true
				c.Write(mqtt.AppendPublish(nil, mqtt.V5, &m))
			}
			c.ReceiveN(10)
			return []*mqtttest.Client{c}
		}, nil},
		{memory.Subscriptions, "groups of one member", many * (300 + 600), func() []*mqtttest.Client {
			c := connect()
			for i := range many {
				c.Subscribe(fmt.Sprint("$share/", i, "/t"), 1)
			}
			c.Unsubscribe("$share/0/t")
			c.Subscribe("$share/0/t", 1)
			return []*mqtttest.Client{c}
		}, nil},
		{memory.Retained, "retained messages with long topics", 2 * many * 1000, func() []*mqtttest.Client {
			c := connect()
			for i := range many {
				c.Publish(mqtttest.Message{Topic: fmt.Sprint(i, "/", payload[:1000]), QoS: 1, Retain: true, Payload: "x"})
			}
			return []*mqtttest.Client{c}
		}, func() {
			c := connect()
			for i := range many {
				c.Publish(mqtttest.Message{Topic: fmt.Sprint(i, "/", payload[:1000]), QoS: 1, Retain: true})
			}
			c.Disconnect()
		}},
		{memory.Retained, "retained messages", many * small, func() []*mqtttest.Client {
			c := connect()
			for range 2 { // each is replaced once
				for i := range many {
					c.Publish(mqtttest.Message{Topic: fmt.Sprint("retained/", i), QoS: 1, Retain: true, Payload: payload[:small]})
				}
			}
			return []*mqtttest.Client{c}
		}, func() {
			c := connect()
			for i := range many {
				c.Publish(mqtttest.Message{Topic: fmt.Sprint("retained/", i), QoS: 1, Retain: true})
			}
			c.Disconnect()
		}},
		{memory.Keys, "keys, by single commands and by a transaction", many*small + large, func() []*mqtttest.Client {
			c := requester(mqtttest.ClientID("keys"))
			txn := []string{"TXN"}
			for i := range many {
				ask(c, "SET", fmt.Sprint("key/", i), payload[:small], "PX", "3600000")
				txn = append(txn, "SET", fmt.Sprint("txn/", i), payload[:small])
			}
			ask(c, txn...)
			ask(c, "SET", "key/large", payload)
			ask(c, "STORE", "key/stored", payload[:small], "message", "-", "CTX", payload[:small], "KEEP", "1000")
			return []*mqtttest.Client{c}
		}, func() {
			keys := []string{"key/large", "key/stored"}
			for i := range many {
				keys = append(keys, fmt.Sprint("key/", i), fmt.Sprint("txn/", i))
			}
			remove(keys...)
		}},
	} {
		end := map[string]func(*mqtttest.Client){
			"disconnects": func(c *mqtttest.Client) { _ = c.WriteErr([]byte{0xE0, 0}); c.Drop() },
			"vanishes":    (*mqtttest.Client).Drop,
		}
		for round, ending := range []string{"vanishes", "disconnects", "vanishes"} {
			before := s.charges()
			clients := test.hold()
			until(t, fmt.Sprintf("%s: %d bytes to be charged as %s", test.what, test.least, test.kind), func() bool {
				return s.memory.UsedBy(test.kind)-before[test.kind] >= test.least
			})
			for _, c := range clients {
				end[ending](c)
			}
			if test.free != nil {
				test.free()
			}
			s.wantCharges(t, fmt.Sprintf("%s, whose client %s", test.what, ending), before, round == 0)
		}
	}
}

// wantCharges waits until the pool is charged with what it was before. With growing, the
// tables of keys may have got their first pages, which they keep.
func (s *Server) wantCharges(t *testing.T, after string, before charges, growing bool) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		now := s.charges()
		if first := now[memory.Keys] - before[memory.Keys]; growing && first > 0 && first <= 1<<20 {
			now[memory.Keys] = before[memory.Keys]
		}
		if maps.Equal(now, before) {
			return
		}
		if time.Since(began) > mqtttest.Deadline {
			t.Fatalf("after %s %v are charged, before it were %v", after, now, before)
		}
	}
}
