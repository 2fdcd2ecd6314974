// Package greedy measures what clients that ask for as much as they can cost others.
package greedy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/bystanders"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/retained"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// Work names what greedy clients do to a server while others ask it.
func Work(what string) string { return "others' GET beside " + what }

// The figures of a flood. Each has one for clients that share the processors with the
// server on the same terms, and all but Elsewhere one for clients Apart.
const (
	Quiet          = "GET p99, quiet"
	Meanwhile      = "GET p99, meanwhile"
	Elsewhere      = "GET p99 from a bare loop that does nothing else, meanwhile"
	rate           = "flood, sent and received"
	processorsUsed = "processors that the server used"
	Baseline       = "GET p99, beside the same subscriptions and no retained messages"
	Apart          = ", the flood's clients on a processor of their own"
)

// greedy is one way to ask a server for more work than it can do.
type greedy struct {
	what    string
	clients int
	// baseline has the flood's clients do what is not to be counted as the flood: "quiet" is
	// what others feel beside it. nil: quiet is without these clients.
	baseline *greedy
	// prepare makes what a flood needs, such as retained messages; nil: nothing.
	prepare func(run *work.Run, t *servers.Target) error
	// flood keeps the server busy until stop is closed, and counts the bytes. A
	// connection that the server ends is made again.
	flood func(t *servers.Target, i int, stop <-chan struct{}, count *atomic.Int64) error
}

var greedies = []greedy{
	{what: "publishes that match 8192 filters of a client", clients: 8, flood: floodOverlapping},
	{what: "publishes with 838840 user properties", clients: 4, flood: floodProperties},
	{what: "SUBSCRIBEs of 478374 filters", clients: 4, flood: floodFilters},
	{what: "50 floods of WebSocket pings", clients: 50, flood: floodPings},
	{what: "50 subscriptions to all of a million retained messages", clients: 50, baseline: &subscribed, prepare: prepareRetained, flood: floodRetained},
	{what: "50 floods of publishes at QoS 0", clients: 50, flood: floodPublishes},
}

// subscribed is 50 subscriptions to all topics, with no retained messages. Their clients
// receive the responses to the others' GETs, too: each GET is a fan-out to 51 connections.
var subscribed = greedy{what: "50 subscriptions to all topics", clients: 50, flood: holdSubscriptions}

// Floods names the floods.
func Floods() (names []string) {
	for _, g := range greedies {
		names = append(names, g.what)
	}
	return names
}

// layout is how the processes of a measurement share the machine's processors.
//
// On a network each client has a machine of its own. Here all of them share the processors
// with the server: what is measured is also what the flood's clients take. Apart, these have
// one half of the processors. The server has the other half, which the bystanders use as
// well: little, and as soon as they want, as they have a real-time priority. So what they
// wait for is the server.
type layout struct {
	suffix string // of the figures' names
	apart  bool
}

// repeats is how often each flood is measured in a layout; the figures are medians.
const repeats = 3

var layouts = []layout{{}, {suffix: Apart, apart: true}}

// Measure measures, for the floods whose names contain a text, what clients that ask for a
// little feel while others ask for as much as they can. In the layout where all processes
// share the processors, what is left of a wait when a bare loop that does nothing else
// answers the same requests, no server can avoid.
func Measure(ctx context.Context, run *work.Run, floods string) error {
	idle := run.Lab.Start(ctx, servers.BareLoop)
	if idle != nil {
		defer idle.Stop()
		if err := preload(idle); err != nil {
			return err
		}
	}
	for _, g := range greedies {
		if !strings.Contains(g.what, floods) {
			continue
		}
		for _, l := range layouts {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := besideGreedy(ctx, run, idle, &g, l); err != nil {
				return fmt.Errorf("%s: %w", g.what, err)
			}
		}
	}
	return nil
}

func preload(t *servers.Target) error {
	return load.Preload(t, load.KeyNames(100), strings.Repeat("v", 64), 1, 50)
}

// besideGreedy measures one flood in one layout.
func besideGreedy(ctx context.Context, run *work.Run, idle *servers.Target, g *greedy, l layout) error {
	var own, others process.Processors // of the server and the bystanders, of the flood
	if l.apart {
		var ok bool
		if own, others, ok = process.Halves(); !ok {
			return nil
		}
	}
	m := func(what string, value float64, unit string) {
		run.Report.Measure(Work(g.what), servers.Holdfast, what+l.suffix, value, unit)
	}
	var t *servers.Target
	if err := process.On(own, func() error { t = run.Lab.Start(ctx, servers.Holdfast); return nil }); err != nil {
		return err
	}
	if t == nil {
		return nil
	}
	defer t.Stop()
	if err := preload(t); err != nil {
		return err
	}
	beside := func(asks *servers.Target, g *greedy) (flooded, error) {
		var all []flooded
		for range min(repeats, run.Report.Rounds) {
			f, err := askBeside(run, t, asks, g, l, own, others)
			if err != nil {
				return flooded{}, err
			}
			all = append(all, f)
		}
		return medians(all), nil
	}
	if g.baseline != nil {
		f, err := beside(t, g.baseline)
		if err != nil {
			return err
		}
		m(Baseline, f.meanwhile, "ms")
	}
	if g.prepare != nil {
		if err := g.prepare(run, t); err != nil {
			return err
		}
	}
	f, err := beside(t, g)
	if err != nil {
		return err
	}
	m(Quiet, f.quiet, "ms")
	m(Meanwhile, f.meanwhile, "ms")
	m(rate, f.rate, "MB/s")
	m(processorsUsed, f.processors, "")
	if idle == nil || l.apart {
		return nil
	}
	if f, err = beside(idle, g); err != nil {
		return err
	}
	m(Elsewhere, f.meanwhile, "ms")
	return nil
}

// flooded is what came of a flood.
type flooded struct {
	quiet, meanwhile float64 // the p99 of the bystanders' GETs before it and beside it, ms
	rate             float64 // what the flood's clients sent and received, MB/s
	processors       float64 // that the server used
}

// medians are those of several measurements.
func medians(all []flooded) flooded {
	of := func(value func(f flooded) float64) float64 {
		values := make([]float64, len(all))
		for i, f := range all {
			values[i] = value(f)
		}
		return report.Median(values)
	}
	return flooded{
		quiet:      of(func(f flooded) float64 { return f.quiet }),
		meanwhile:  of(func(f flooded) float64 { return f.meanwhile }),
		rate:       of(func(f flooded) float64 { return f.rate }),
		processors: of(func(f flooded) float64 { return f.processors }),
	}
}

// askBeside has bystanders ask one server before and while t is flooded.
func askBeside(run *work.Run, t, asks *servers.Target, g *greedy, l layout, own, others process.Processors) (flooded, error) {
	var flood *floodClients
	var by *bystanders.Clients
	err := process.On(others, func() (err error) { flood, err = startFlood(t, g); return err })
	if err != nil {
		return flooded{}, err
	}
	if err := process.On(own, func() (err error) { by, err = bystanders.Start(asks.Addr, l.apart); return err }); err != nil {
		flood.stop()
		return flooded{}, err
	}
	time.Sleep(2 * run.RoundTime)
	before, began := t.Procs.CPU(), process.Monotonic()
	flood.begin()
	time.Sleep(time.Duration(run.Report.Rounds) * run.RoundTime)
	ended, after := process.Monotonic(), t.Procs.CPU()
	bytes, err1 := flood.stop()
	requests, err2 := by.Stop()
	if err := errors.Join(err1, err2); err != nil {
		return flooded{}, err
	}
	var quiet, meanwhile latency.Histogram
	for _, r := range requests {
		switch {
		case r.At+r.Took < began:
			quiet.Add(time.Duration(r.Took), 1)
		case r.At+r.Took > began && r.At < ended:
			meanwhile.Add(time.Duration(r.Took), 1)
		}
	}
	seconds := time.Duration(ended - began).Seconds()
	ms := func(h *latency.Histogram) float64 { return report.Microseconds(h.Percentile(0.99)) / 1e3 }
	return flooded{ms(&quiet), ms(&meanwhile), float64(bytes) / 1e6 / seconds, (after - before).Seconds() / seconds}, nil
}

// pour writes data to fresh connections, each after its greeting, as fast as the
// server takes it, and throws away what comes back. A server may end or refuse
// such a connection; only if it takes none at all, that is an error.
func pour(connect func() (net.Conn, error), data []byte, stop <-chan struct{}, count *atomic.Int64) error {
	connected := false
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		c, err := connect()
		if err != nil {
			if !connected {
				return err
			}
			time.Sleep(time.Millisecond)
			continue
		}
		connected = true
		var reading sync.WaitGroup
		reading.Go(func() { discard(c, count) })
		over := make(chan struct{})
		reading.Go(func() {
			select {
			case <-stop:
			case <-over:
			}
			c.Close()
		})
		for n := 0; err == nil; count.Add(int64(n)) {
			n, err = c.Write(data)
		}
		close(over)
		reading.Wait()
	}
}

// discard reads until the connection ends.
func discard(c net.Conn, count *atomic.Int64) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := c.Read(buffer)
		count.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// connectTo gives connections of new clients, subscribed to filters if there are any.
func connectTo(t *servers.Target, filters ...string) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		c, err := client.DialMQTT(t.Addr, "", 0, 64<<10)
		if err != nil {
			return nil, err
		}
		for _, filter := range filters {
			c.Out = wire.AppendSubscribe(c.Out, 1, filter, 0)
		}
		if err := c.Send(); err != nil {
			return nil, err
		}
		for pending := len(filters); pending > 0; { // messages may come between
			header, _, err := c.Next()
			if err != nil {
				return nil, err
			}
			if header == wire.Suback {
				pending--
			}
		}
		return c.Conn, nil
	}
}

func floodOverlapping(t *servers.Target, i int, stop <-chan struct{}, count *atomic.Int64) error {
	const levels = 13
	var topic []string
	for l := range levels {
		topic = append(topic, fmt.Sprint("level", l))
	}
	var filters []string
	if i == 0 {
		for bits := range 1 << levels {
			filter := append([]string(nil), topic...)
			for l := range levels {
				if bits>>l&1 != 0 {
					filter[l] = "+"
				}
			}
			filters = append(filters, strings.Join(filter, "/"))
		}
		c, err := connectTo(t, filters...)()
		if err != nil {
			return err
		}
		defer c.Close()
		go discard(c, count)
		<-stop
		return nil
	}
	publish := wire.AppendPublish(nil, 0, false, 0, strings.Join(topic, "/"), nil, []byte("x"))
	return pour(connectTo(t), bytes.Repeat(publish, 100), stop, count)
}

func floodProperties(t *servers.Target, i int, stop <-chan struct{}, count *atomic.Int64) error {
	var props []byte
	for range 838_840 {
		props = wire.AppendUser(props, "", "")
	}
	data := wire.AppendPublish(nil, 0, false, 0, fmt.Sprint("properties/", i), props, nil)
	return pour(connectTo(t), data, stop, count)
}

func floodFilters(t *servers.Target, _ int, stop <-chan struct{}, count *atomic.Int64) error {
	body := []byte{0, 1, 0} // packet identifier, no properties
	for n := range 478_374 {
		body = append(wire.AppendString(body, fmt.Sprintf("%06x", n)[:5]), 0)
	}
	data := append([]byte{0x82}, wire.AppendVarint(nil, len(body))...)
	return pour(connectTo(t), append(data, body...), stop, count)
}

// floodPings sends empty WebSocket pings, masked as clients must.
func floodPings(t *servers.Target, _ int, stop <-chan struct{}, count *atomic.Int64) error {
	ping := []byte{0x89, 0x80, 0, 0, 0, 0}
	return pour(func() (net.Conn, error) {
		c, err := net.DialTimeout("tcp", t.WebSocket, client.Patience)
		if err != nil {
			return nil, err
		}
		r, err := http.NewRequest("GET", "http://"+t.WebSocket, nil)
		if err != nil {
			return nil, err
		}
		for name, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
			"Sec-WebSocket-Key": "aG9sZGZhc3QgYmVuY2htYQ==", "Sec-WebSocket-Protocol": "mqtt",
		} {
			r.Header.Set(name, value)
		}
		if err := r.Write(c); err != nil {
			return nil, err
		}
		answer, err := http.ReadResponse(bufio.NewReader(c), r)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode != http.StatusSwitchingProtocols {
			return nil, fmt.Errorf("WebSocket: %s", answer.Status)
		}
		// An MQTT CONNECT in one binary frame, so that the server keeps the connection.
		connect := wire.AppendConnect(nil, "", 0, 0)
		frame := append([]byte{0x82, 0x80 | byte(len(connect)), 0, 0, 0, 0}, connect...)
		_, err = c.Write(frame)
		return c, err
	}, bytes.Repeat(ping, 10_000), stop, count)
}

func prepareRetained(run *work.Run, t *servers.Target) error {
	plants := 1000
	if run.Quick {
		plants = 20
	}
	_, _, err := retained.Store(t, plants)
	return err
}

// holdSubscriptions subscribes to everything once.
func holdSubscriptions(t *servers.Target, _ int, stop <-chan struct{}, count *atomic.Int64) error {
	c, err := connectTo(t, "#")()
	if err != nil {
		return err
	}
	defer c.Close()
	go discard(c, count)
	<-stop
	return nil
}

// floodRetained subscribes to everything again and again.
func floodRetained(t *servers.Target, _ int, stop <-chan struct{}, count *atomic.Int64) error {
	subscribe := wire.AppendSubscribe(nil, 1, "#", 0)
	return pour(connectTo(t), subscribe, stop, count)
}

func floodPublishes(t *servers.Target, i int, stop <-chan struct{}, count *atomic.Int64) error {
	publish := wire.AppendPublish(nil, 0, false, 0, fmt.Sprint("flood/", i), nil, binary.BigEndian.AppendUint64(nil, uint64(i)))
	return pour(connectTo(t), bytes.Repeat(publish, 2000), stop, count)
}
