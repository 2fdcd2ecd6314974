package abuse

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Slow consumers: subscribers of one topic, a tenth of which stop reading. All of them read
// while the bystander is alone, so what it notices beside that is due to those that have
// stopped; and those that go on must get every message, in order.

var slowAttacks = []*Attack{
	{
		Name:       "slow consumers",
		What:       "1,000 clients subscribe to one topic, on which 20 messages of 4 KB a second are published at QoS 1; 100 of them stop reading",
		SmallFlags: smallPool,
		Ceiling:    [2]int64{400, 1024},
		Prepare: func(t *Target) (err error) {
			t.hall, err = openHall(t, pick(t, 100, 1_000))
			return err
		},
		Launch: func(t *Target) error {
			t.hall.deaf.Store(true)
			t.hold(pick(t, time.Second, 20*time.Second))
			return t.hall.end(attackLimit)
		},
	},
}

const (
	hallTopic   = "hall/news"
	hallPause   = 50 * time.Millisecond // between two messages
	hallPayload = 4 << 10               // bytes
)

// hall is a publisher and the subscribers that it reaches.
type hall struct {
	deaf      atomic.Bool // those that stop reading have been told so
	listeners []*listener

	stop      context.CancelFunc // ends the publisher
	published chan hallEnd       // what it came to
}

// hallEnd is how many messages were acknowledged, and what kept the publisher from more.
type hallEnd struct {
	count int
	err   error
}

// listener is a subscriber, which knows what it must get next.
type listener struct {
	link  *link
	stops bool // when the hall says so

	got  atomic.Int64
	lost atomic.Pointer[error] // what ended it; nil: nothing has
}

// openHall connects n subscribers, every tenth of which will stop reading, and begins to
// publish.
func openHall(t *Target, n int) (*hall, error) {
	h := &hall{listeners: make([]*listener, n), published: make(chan hallEnd, 1)}
	var failed atomic.Pointer[error]
	entered := t.each(n, 50, func(i int) error {
		l := &listener{stops: i%10 == 0}
		h.listeners[i] = l
		enter := func() (err error) {
			if l.link, err = t.enter(fmt.Sprintf("hall-%d", i), 0); err != nil {
				return err
			}
			if l.stops { // so that what it does not read stays with the server
				if err := l.link.nc.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
					return err
				}
			}
			return l.link.subscribe(1, attackLimit, hallTopic)
		}
		if err := enter(); err != nil {
			failed.Store(&err)
			return err
		}
		return nil
	})
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	if entered < n {
		return nil, fmt.Errorf("%d of %d subscribers came in time", entered, n)
	}
	publisher, err := t.enter("hall-publisher", 0)
	if err != nil {
		return nil, err
	}
	for _, l := range h.listeners {
		go l.listen(h)
	}
	ctx, stop := context.WithCancel(t.ctx)
	h.stop = stop
	go func() { h.published <- publish(ctx, publisher) }()
	return h, nil
}

// publish publishes numbered messages until ctx ends.
func publish(ctx context.Context, k *link) (end hallEnd) {
	tick := time.NewTicker(hallPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return end
		}
		payload := make([]byte, hallPayload)
		copy(payload, fmt.Sprintf("%d ", end.count))
		if end.err = k.write(k.publish(1, false, hallTopic, payload), attackLimit); end.err != nil {
			return end
		}
		if _, end.err = k.await(mqtt.PUBACK, time.Now().Add(attackLimit)); end.err != nil {
			return end
		}
		end.count++
	}
}

// listen reads and acknowledges messages, until the connection ends or the listener stops.
func (l *listener) listen(h *hall) {
	for !l.stops || !h.deaf.Load() {
		if err := l.next(); err != nil {
			l.lost.Store(&err)
			return
		}
	}
}

// next takes a message, which must be the one after the last.
func (l *listener) next() error {
	p, err := l.link.await(mqtt.PUBLISH, time.Time{})
	if err != nil {
		return err
	}
	var m mqtt.Publish
	if err := m.DecodeDelivery(mqtt.V5, p.header, p.body); err != nil {
		return err
	}
	var number int64
	if _, err := fmt.Sscanf(string(m.Payload), "%d ", &number); err != nil || number != l.got.Load() {
		return fmt.Errorf("message %d came after %d others", number, l.got.Load())
	}
	l.got.Add(1)
	return l.link.write(mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBACK, m.PacketID, mqtt.Success, ""), attackLimit)
}

// end stops the publisher, and says what those that read have not got within limit.
func (h *hall) end(limit time.Duration) error {
	h.stop()
	end := <-h.published
	if end.err != nil {
		return fmt.Errorf("the publisher: %w", end.err)
	}
	if end.count == 0 {
		return errors.New("no message was published")
	}
	deadline := time.Now().Add(limit)
	for i, l := range h.listeners {
		for !l.stops && l.got.Load() < int64(end.count) {
			if lost := l.lost.Load(); lost != nil {
				return fmt.Errorf("a subscriber that reads, %d, got %d of %d messages: %w", i, l.got.Load(), end.count, *lost)
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("a subscriber that reads, %d, got %d of %d messages in time", i, l.got.Load(), end.count)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}
