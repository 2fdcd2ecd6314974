package server

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// queues is a server with a client that is away and has subscribed to "news".
type queues struct {
	*testing.T
	s      *Server
	cfg    Config
	addr   string
	filter string
	from   *mqtttest.Client
	log    *logs.Text
}

func newQueues(t *testing.T, filter string, change func(*Config)) *queues {
	q := &queues{T: t, filter: filter, log: new(logs.Text)}
	q.s = start(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(q.log, nil))
		change(c)
		q.cfg = *c
	})
	q.addr = q.s.Addrs()[0].String()
	q.from = mqtttest.Connect(t, q.addr, mqtttest.ClientID("publisher"))
	c := mqtttest.Connect(t, q.addr, mqtttest.Persistent("away"))
	c.Subscribe(filter, 1)
	c.Disconnect()
	c.AwaitEnd()
	return q
}

// adjust does what a SIGHUP does.
func (q *queues) adjust(change func(*limits.Limits)) {
	c := q.cfg
	change(&c.Limits)
	q.s.Adjust(c)
}

// publish publishes messages with these numbers, and wants the code for each.
func (q *queues) publish(from, to int, want mqtt.ReasonCode) {
	q.Helper()
	for n := from; n <= to; n++ {
		if got := q.from.Offer(mqtttest.Message{Topic: "news", Payload: fmt.Sprint(n), QoS: 1}).Code; got != want {
			q.Fatalf("message %d: %v, want %v", n, got, want)
		}
	}
}

// gets has the client connect, take messages with these numbers and no other, and go away.
func (q *queues) gets(from, to int) {
	q.Helper()
	c := mqtttest.Dial(q.T, q.addr)
	if ack := c.Connect(mqtttest.Persistent("away")); !ack.SessionPresent {
		q.Fatal("the session has ended")
	}
	var want []string
	for n := from; n <= to; n++ {
		want = append(want, fmt.Sprint(n))
	}
	if got := mqtttest.Payloads(c.ReceiveN(len(want))); !slices.Equal(got, want) {
		q.Fatalf("the client got %v, want %v", got, want)
	}
	c.Quiet()
	c.Disconnect()
	c.AwaitEnd()
}

// said wants the text in the log.
func (q *queues) said(text string) {
	q.Helper()
	if got := q.log.String(); !strings.Contains(got, text) {
		q.Fatalf("the log has no %q:\n%s", text, got)
	}
}

func (q *queues) ended() bool {
	for _, s := range q.s.broker.Sessions.All() {
		if s.ID == "away" {
			return false
		}
	}
	return true
}

// both runs a test with a session's queue and with the backlog of a shared subscription.
func both(t *testing.T, test func(t *testing.T, filter string)) {
	t.Parallel()
	for _, filter := range []string{"news", "$share/group/news"} {
		t.Run(strings.ReplaceAll(filter, "/", " "), func(t *testing.T) {
			t.Parallel()
			test(t, filter)
		})
	}
}

// Where publishes are refused when a queue is full, a bound that has become lower refuses them
// until the client has taken what it has beyond that; it gets all of it.
func TestALowerBoundOfQueuesRejects(t *testing.T) {
	both(t, func(t *testing.T, filter string) {
		q := newQueues(t, filter, func(c *Config) { c.Limits.MaxQueued, c.Limits.QueueFull = 6, limits.Reject })
		q.publish(1, 6, mqtt.Success)
		q.publish(7, 7, mqtt.QuotaExceeded)
		q.adjust(func(l *limits.Limits) { l.MaxQueued = 2 })
		q.said("reject=1")
		q.publish(7, 7, mqtt.QuotaExceeded)
		q.gets(1, 6)
		q.publish(1, 2, mqtt.Success)
		q.publish(3, 3, mqtt.QuotaExceeded)
		q.adjust(func(l *limits.Limits) { l.MaxQueued = 3 })
		q.publish(3, 3, mqtt.Success)
		q.publish(4, 4, mqtt.QuotaExceeded)
		q.gets(1, 3)
	})
}

// Where the oldest messages are dropped, the next message drops as many as are beyond the bound,
// also where that is more than half of them, and most are on disk only.
func TestALowerBoundOfQueuesDrops(t *testing.T) {
	both(t, func(t *testing.T, filter string) {
		const many = 700
		q := newQueues(t, filter, func(c *Config) { c.Limits.MaxQueued, c.Limits.QueueFull = many, limits.DropOldest })
		q.publish(1, many, mqtt.Success)
		q.adjust(func(l *limits.Limits) { l.MaxQueued = 3 })
		q.said("drop-oldest=1")
		if queued := q.s.broker.Stats().Queued.Load(); queued != many {
			t.Fatalf("%d messages are queued before the next one comes, want %d", queued, many)
		}
		q.publish(many+1, many+1, mqtt.Success)
		await(t, "the oldest messages to go", func() bool { return q.s.broker.Stats().Queued.Load() == 3 })
		q.gets(many-1, many+1)
	})
}

// Where a full queue ends its session, the next message does that, and not the lower bound. A
// client that has taken its messages until then keeps its session.
func TestALowerBoundOfQueuesEndsSessions(t *testing.T) {
	both(t, func(t *testing.T, filter string) {
		q := newQueues(t, filter, func(c *Config) { c.Limits.MaxQueued = 6 })
		q.publish(1, 6, mqtt.Success)
		q.adjust(func(l *limits.Limits) { l.MaxQueued = 2 })
		q.said("end-session=1")
		q.gets(1, 6)
		q.publish(1, 2, mqtt.Success)
		q.adjust(func(l *limits.Limits) { l.MaxQueued = 1 })
		if q.ended() {
			t.Fatal("the session has ended before a message came")
		}
		q.publish(3, 3, mqtt.Success)
		await(t, "the session to end", q.ended)
	})
}

// The bounds in bytes, and what happens at them, change as well; what is left open is as the
// start has fitted it to the disk.
func TestBoundsOfQueuesInBytes(t *testing.T) {
	t.Parallel()
	q := newQueues(t, "news", func(*Config) {})
	one, all := q.s.broker.QueueBounds()
	q.publish(1, 10, mqtt.Success)
	q.adjust(func(l *limits.Limits) { l.MaxQueuedBytes, l.QueueFull = 256, limits.Reject })
	q.publish(11, 11, mqtt.QuotaExceeded)
	q.adjust(func(l *limits.Limits) { l.MaxTotalQueuedBytes, l.QueueFull = 256, limits.EndSession })
	q.publish(11, 11, mqtt.QuotaExceeded) // all queues together are beyond their bound
	q.adjust(func(l *limits.Limits) { l.MaxQueuedBytes = 2 * all })
	if a, b := q.s.broker.QueueBounds(); a != 2*all || b != 2*all {
		t.Errorf("the bounds are %d and %d bytes, want %d for both", a, b, 2*all)
	}
	q.adjust(func(*limits.Limits) {})
	if a, b := q.s.broker.QueueBounds(); a != one || b != all {
		t.Errorf("left open, the bounds are %d and %d bytes; at the start they were %d and %d", a, b, one, all)
	}
	q.publish(11, 11, mqtt.Success)
	q.gets(1, 11)
}

// What a client was given when it connected stays with its connection: inflight deliveries.
// Subscriptions beyond their bound stay, and one more is refused.
func TestBoundsOfSessions(t *testing.T) {
	t.Parallel()
	q := newQueues(t, "news", func(c *Config) { c.Limits.MaxInflight = 2 })
	connect := func() *mqtttest.Client {
		return mqtttest.Connect(t, q.addr, mqtttest.Persistent("away"), mqtttest.Resume(), mqtttest.HoldAcks())
	}
	q.publish(1, 4, mqtt.Success)
	c := connect()
	c.ReceiveN(2)
	q.adjust(func(l *limits.Limits) { l.MaxInflight, l.MaxSubscriptions, l.MaxSessionExpiry = 3, 2, 60*time.Second })
	c.Quiet()
	c.Drop()
	c.AwaitEnd()
	c = connect()
	c.ReceiveN(3)
	c.Quiet()
	for i, want := range []mqtt.ReasonCode{mqtt.GrantedQoS1, mqtt.QuotaExceeded} {
		if got := c.OfferSubscribe(0, mqtttest.Sub{Filter: fmt.Sprint("more/", i), QoS: 1}).Codes[0]; got != want {
			t.Errorf("subscription %d: %v, want %v", i+2, got, want)
		}
	}
	if ack := mqtttest.Dial(t, q.addr).Connect(mqtttest.ClientID("other"), mqtttest.SessionExpiry(3600)); ack.SessionExpiry != 60 {
		t.Errorf("a session expiry of %d s was granted, want 60", ack.SessionExpiry)
	}
}

// Bounds of queues change while messages are queued and taken; every message that is accepted
// arrives, where none is dropped.
func TestBoundsOfQueuesChangeUnderLoad(t *testing.T) {
	both(t, func(t *testing.T, filter string) {
		q := newQueues(t, filter, func(c *Config) { c.Limits.QueueFull = limits.Reject })
		var working sync.WaitGroup
		const each = 60
		for i := range 3 {
			working.Go(func() {
				p := mqtttest.Connect(t, q.addr, mqtttest.ClientID(fmt.Sprint("p", i)))
				for n := 0; n < each; {
					if !p.Offer(mqtttest.Message{Topic: "news", Payload: "x", QoS: 1}).Code.Failed() {
						n++
					}
				}
			})
		}
		c := mqtttest.Connect(t, q.addr, mqtttest.Persistent("away"), mqtttest.ReceiveMaximum(3))
		all := make(chan struct{})
		go func() {
			defer close(all)
			c.ReceiveN(3 * each)
		}()
		for n := 0; ; n++ {
			q.adjust(func(l *limits.Limits) { l.MaxQueued, l.MaxQueuedBytes = 5+n%50, int64(2000+n%7*1000) })
			select {
			case <-all:
				working.Wait()
				c.Quiet()
				return
			default:
			}
		}
	})
}
