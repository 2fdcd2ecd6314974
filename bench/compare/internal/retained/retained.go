// Package retained measures retained messages.
package retained

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

const title = "retained messages"

// Measure fills a broker with retained messages and measures how long a
// subscriber waits for those that match.
func Measure(ctx context.Context, run *work.Run) error {
	plants := 1000
	if run.Quick {
		plants = 20
	}
	for _, name := range []string{servers.Holdfast, servers.Mochi, servers.Mosquitto} {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := run.Lab.Start(ctx, name)
		if t == nil {
			continue
		}
		if err := retainedAt(run, t, plants); err != nil {
			run.Report.Row(title, name).Failed = err.Error()
			log.Printf("%s, %s: %v", title, name, err)
		}
		t.Stop()
	}
	return nil
}

// sensors is how many topics each plant has.
const sensors = 1000

// retainer publishes the retained messages of its plants, a window at a time.
type retainer struct {
	*client.Connection
	topics []string
}

func (r *retainer) Exchange(h *latency.Histogram) error {
	n := min(len(r.topics), 100)
	for i, topic := range r.topics[:n] {
		r.Out = wire.AppendPublish(r.Out, 1, true, uint16(i+1), topic, nil, []byte("a value of 16 by"))
	}
	r.topics = r.topics[n:]
	start := time.Now()
	if err := r.Send(); err != nil {
		return err
	}
	for range n {
		header, body, err := r.Next()
		if err != nil {
			return err
		}
		if header != wire.Puback || len(body) > 2 && body[2] >= 0x80 {
			return fmt.Errorf("packet %#x % x", header, body)
		}
	}
	h.Add(time.Since(start), n)
	return nil
}

func retainedAt(run *work.Run, t *servers.Target, plants int) error {
	before := t.Procs.Memory("VmRSS")
	count := plants * sensors
	h, elapsed, err := Store(t, plants)
	if err != nil {
		return err
	}
	servers.Settle()
	m := func(what string, value float64, unit string) {
		run.Report.Measure(title, t.Name, what, value, unit)
	}
	m("messages", float64(count), "")
	m("stored", float64(h.Count)/elapsed.Seconds(), "per second")
	m("memory each", float64(t.Procs.Memory("VmRSS")-before)/float64(count), "B")
	for _, f := range []struct {
		filter string
		match  int
	}{{"plant/7/sensor/7", 1}, {"plant/7/sensor/+", sensors}, {"plant/+/sensor/7", plants}} {
		took, err := subscribeRetained(t.Addr, f.filter, f.match)
		if err != nil {
			return fmt.Errorf("%s: %w", f.filter, err)
		}
		m(fmt.Sprintf("SUBSCRIBE %s to the last of %d", f.filter, f.match), took, "ms")
	}
	return nil
}

// Store publishes the retained messages of plants.
func Store(t *servers.Target, plants int) (h *latency.Histogram, elapsed time.Duration, err error) {
	const publishers = 10
	var clients []client.Client
	defer func() { load.CloseAll(clients) }()
	for p := range publishers {
		c, err := client.DialMQTT(t.Addr, fmt.Sprint("retainer-", p), 0, 4096)
		if err != nil {
			return nil, 0, err
		}
		r := &retainer{Connection: c}
		for plant := p; plant < plants; plant += publishers {
			for sensor := range sensors {
				r.topics = append(r.topics, fmt.Sprintf("plant/%d/sensor/%d", plant, sensor))
			}
		}
		clients = append(clients, r)
	}
	return load.Loop(clients, time.Minute, func(round int, _ time.Time) bool { return round < plants/publishers*sensors/100 })
}

// subscribeRetained gives the median time in ms from a SUBSCRIBE to the last
// retained message.
func subscribeRetained(addr, filter string, match int) (float64, error) {
	c, err := client.DialMQTT(addr, "reader", 0, 256<<10)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * client.Patience))
	var took []float64
	for range 21 {
		start := time.Now()
		c.Out = wire.AppendSubscribe(c.Out, 1, filter, 0)
		if err := c.Send(); err != nil {
			return 0, err
		}
		for awaited := match + 1; awaited > 0; awaited-- { // and the SUBACK
			if _, _, err := c.Next(); err != nil {
				return 0, err
			}
		}
		took = append(took, time.Since(start).Seconds()*1e3)
		c.Out = wire.AppendUnsubscribe(c.Out, 2, filter)
		if err := errors.Join(c.Send(), c.Expect(0xB0)); err != nil {
			return 0, err
		}
	}
	return report.Median(took), nil
}
