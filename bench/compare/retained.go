package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

const retainedWork = "retained messages"

// retained fills a broker with retained messages and measures how long a
// subscriber waits for those that match.
func (b *bench) retained(ctx context.Context) error {
	plants := 1000
	if b.quick {
		plants = 20
	}
	for _, name := range []string{holdfast, mochi, mosquitto} {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := b.lab.start(ctx, name)
		if t == nil {
			continue
		}
		if err := b.retainedAt(t, plants); err != nil {
			b.report.row(retainedWork, name).Failed = err.Error()
			logf("%s, %s: %v", retainedWork, name, err)
		}
		t.stop()
	}
	return nil
}

// sensors is how many topics each plant has.
const sensors = 1000

// retainer publishes the retained messages of its plants, a window at a time.
type retainer struct {
	*connection
	topics []string
}

func (r *retainer) exchange(h *histogram) error {
	n := min(len(r.topics), 100)
	for i, topic := range r.topics[:n] {
		r.out = wire.AppendPublish(r.out, 1, true, uint16(i+1), topic, nil, []byte("a value of 16 by"))
	}
	r.topics = r.topics[n:]
	start := time.Now()
	if err := r.send(); err != nil {
		return err
	}
	for range n {
		header, body, err := r.next()
		if err != nil {
			return err
		}
		if header != wire.Puback || len(body) > 2 && body[2] >= 0x80 {
			return fmt.Errorf("packet %#x % x", header, body)
		}
	}
	h.add(time.Since(start), n)
	return nil
}

func (r *retainer) close() { r.Close() }

func (b *bench) retainedAt(t *target, plants int) error {
	before := t.procs.memory("VmRSS")
	count := plants * sensors
	h, elapsed, err := t.retain(plants)
	if err != nil {
		return err
	}
	settle()
	m := func(what string, value float64, unit string) {
		b.report.measure(retainedWork, t.name, what, value, unit)
	}
	m("messages", float64(count), "")
	m("stored", float64(h.count)/elapsed.Seconds(), "per second")
	m("memory each", float64(t.procs.memory("VmRSS")-before)/float64(count), "B")
	for _, f := range []struct {
		filter string
		match  int
	}{{"plant/7/sensor/7", 1}, {"plant/7/sensor/+", sensors}, {"plant/+/sensor/7", plants}} {
		took, err := subscribeRetained(t.addr, f.filter, f.match)
		if err != nil {
			return fmt.Errorf("%s: %w", f.filter, err)
		}
		m(fmt.Sprintf("SUBSCRIBE %s to the last of %d", f.filter, f.match), took, "ms")
	}
	return nil
}

// retain publishes the retained messages of plants.
func (t *target) retain(plants int) (h *histogram, elapsed time.Duration, err error) {
	const publishers = 10
	var clients []client
	defer func() { closeAll(clients) }()
	for p := range publishers {
		c, err := dialMQTT(t.addr, fmt.Sprint("retainer-", p), 0, 4096)
		if err != nil {
			return nil, 0, err
		}
		r := &retainer{connection: c}
		for plant := p; plant < plants; plant += publishers {
			for sensor := range sensors {
				r.topics = append(r.topics, fmt.Sprintf("plant/%d/sensor/%d", plant, sensor))
			}
		}
		clients = append(clients, r)
	}
	return loop(clients, time.Minute, func(round int, _ time.Time) bool { return round < plants/publishers*sensors/100 })
}

// subscribeRetained gives the median time in ms from a SUBSCRIBE to the last
// retained message.
func subscribeRetained(addr, filter string, match int) (float64, error) {
	c, err := dialMQTT(addr, "reader", 0, 256<<10)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * patience))
	var took []float64
	for range 21 {
		start := time.Now()
		c.out = wire.AppendSubscribe(c.out, 1, filter, 0)
		if err := c.send(); err != nil {
			return 0, err
		}
		for awaited := match + 1; awaited > 0; awaited-- { // and the SUBACK
			if _, _, err := c.next(); err != nil {
				return 0, err
			}
		}
		took = append(took, time.Since(start).Seconds()*1e3)
		c.out = wire.AppendUnsubscribe(c.out, 2, filter)
		if err := errors.Join(c.send(), c.expect(0xB0)); err != nil {
			return 0, err
		}
	}
	return median(took), nil
}
