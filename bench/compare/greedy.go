package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// greedyWork names what greedy clients do to a server while others ask it.
func greedyWork(what string) string { return "others' GET beside " + what }

// The figures of a flood.
const (
	greedyQuiet     = "GET p99, quiet"
	greedyMeanwhile = "GET p99, meanwhile"
	greedyElsewhere = "GET p99 from a bare loop that does nothing else, meanwhile"
)

// greedy is one way to ask a server for more work than it can do.
type greedy struct {
	what    string
	clients int
	// prepare makes what a flood needs, such as retained messages; nil: nothing.
	prepare func(b *bench, t *target) error
	// flood keeps the server busy until stop is closed. A connection that the
	// server ends is made again.
	flood func(t *target, i int, stop <-chan struct{}) error
}

var greedies = []greedy{
	{what: "publishes that match 8192 filters of a client", clients: 8, flood: floodOverlapping},
	{what: "publishes with 838840 user properties", clients: 4, flood: floodProperties},
	{what: "SUBSCRIBEs of 478374 filters", clients: 4, flood: floodFilters},
	{what: "50 floods of WebSocket pings", clients: 50, flood: floodPings},
	{what: "50 subscriptions to all of a million retained messages", clients: 50, prepare: prepareRetained, flood: floodRetained},
	{what: "50 floods of publishes at QoS 0", clients: 50, flood: floodPublishes},
}

// greedy measures what clients that ask for a little feel while others ask for as
// much as they can. The floods and the bystanders share the processors with the
// server: what is left of a wait when a bare loop that does nothing else answers
// the same requests, no server can avoid.
func (b *bench) greedy(ctx context.Context) error {
	idle := b.lab.start(ctx, bareLoop)
	if idle != nil {
		defer idle.stop()
		if err := idle.preload(keyNames(100), strings.Repeat("v", 64), 1, 50); err != nil {
			return err
		}
	}
	for _, g := range greedies {
		if !strings.Contains(g.what, b.flood) {
			continue
		}
		t := b.lab.start(ctx, holdfast)
		if t == nil {
			return nil
		}
		err := b.besideGreedy(t, idle, &g)
		t.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", g.what, err)
		}
	}
	return nil
}

func (b *bench) besideGreedy(t, idle *target, g *greedy) error {
	if err := t.preload(keyNames(100), strings.Repeat("v", 64), 1, 50); err != nil {
		return err
	}
	if g.prepare != nil {
		if err := g.prepare(b, t); err != nil {
			return err
		}
	}
	m := func(what string, h *histogram) {
		b.report.measure(greedyWork(g.what), t.name, what, microseconds(h.percentile(0.99))/1e3, "ms")
	}
	quiet, meanwhile, err := b.askBeside(t, t, g)
	if err != nil {
		return err
	}
	m(greedyQuiet, quiet)
	m(greedyMeanwhile, meanwhile)
	if idle == nil {
		return nil
	}
	if _, meanwhile, err = b.askBeside(t, idle, g); err != nil {
		return err
	}
	m(greedyElsewhere, meanwhile)
	return nil
}

// askBeside has bystanders ask one server before and while t is flooded.
func (b *bench) askBeside(t, asks *target, g *greedy) (quiet, meanwhile *histogram, err error) {
	by, err := startBystanders(asks.addr)
	if err != nil {
		return nil, nil, err
	}
	time.Sleep(2 * b.roundTime)
	began := monotonic()
	stop := make(chan struct{})
	failures := make([]error, g.clients)
	var floods sync.WaitGroup
	for i := range g.clients {
		floods.Go(func() { failures[i] = g.flood(t, i, stop) })
	}
	time.Sleep(time.Duration(b.report.Rounds) * b.roundTime)
	ended := monotonic()
	close(stop)
	floods.Wait()
	requests, err := by.stop()
	if err := errors.Join(append(failures, err)...); err != nil {
		return nil, nil, err
	}
	quiet, meanwhile = new(histogram), new(histogram)
	for _, r := range requests {
		switch {
		case r.At+r.Took < began:
			quiet.add(time.Duration(r.Took), 1)
		case r.At+r.Took > began && r.At < ended:
			meanwhile.add(time.Duration(r.Took), 1)
		}
	}
	return quiet, meanwhile, nil
}

// pour writes data to fresh connections, each after its greeting, as fast as the
// server takes it, and throws away what comes back. A server may end or refuse
// such a connection; only if it takes none at all, that is an error.
func pour(connect func() (net.Conn, error), data []byte, stop <-chan struct{}) error {
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
		reading.Go(func() { io.Copy(io.Discard, c) })
		over := make(chan struct{})
		reading.Go(func() {
			select {
			case <-stop:
			case <-over:
			}
			c.Close()
		})
		for err == nil {
			_, err = c.Write(data)
		}
		close(over)
		reading.Wait()
	}
}

// connectTo gives connections of new clients, subscribed to filters if there are any.
func connectTo(t *target, filters ...string) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		c, err := dialMQTT(t.addr, "", 0, 64<<10)
		if err != nil {
			return nil, err
		}
		for _, filter := range filters {
			c.out = wire.AppendSubscribe(c.out, 1, filter, 0)
		}
		if err := c.send(); err != nil {
			return nil, err
		}
		for pending := len(filters); pending > 0; { // messages may come between
			header, _, err := c.next()
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

func floodOverlapping(t *target, i int, stop <-chan struct{}) error {
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
		go io.Copy(io.Discard, c)
		<-stop
		return nil
	}
	publish := wire.AppendPublish(nil, 0, false, 0, strings.Join(topic, "/"), nil, []byte("x"))
	return pour(connectTo(t), bytes.Repeat(publish, 100), stop)
}

func floodProperties(t *target, i int, stop <-chan struct{}) error {
	var props []byte
	for range 838_840 {
		props = wire.AppendUser(props, "", "")
	}
	data := wire.AppendPublish(nil, 0, false, 0, fmt.Sprint("properties/", i), props, nil)
	return pour(connectTo(t), data, stop)
}

func floodFilters(t *target, _ int, stop <-chan struct{}) error {
	body := []byte{0, 1, 0} // packet identifier, no properties
	for n := range 478_374 {
		body = append(wire.AppendString(body, fmt.Sprintf("%06x", n)[:5]), 0)
	}
	data := append([]byte{0x82}, wire.AppendVarint(nil, len(body))...)
	return pour(connectTo(t), append(data, body...), stop)
}

// floodPings sends empty WebSocket pings, masked as clients must.
func floodPings(t *target, _ int, stop <-chan struct{}) error {
	ping := []byte{0x89, 0x80, 0, 0, 0, 0}
	return pour(func() (net.Conn, error) {
		c, err := net.DialTimeout("tcp", t.webSocket, patience)
		if err != nil {
			return nil, err
		}
		r, err := http.NewRequest("GET", "http://"+t.webSocket, nil)
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
	}, bytes.Repeat(ping, 10_000), stop)
}

func prepareRetained(b *bench, t *target) error {
	plants := 1000
	if b.quick {
		plants = 20
	}
	_, _, err := t.retain(plants)
	return err
}

// floodRetained subscribes to everything again and again.
func floodRetained(t *target, _ int, stop <-chan struct{}) error {
	subscribe := wire.AppendSubscribe(nil, 1, "#", 0)
	return pour(connectTo(t), subscribe, stop)
}

func floodPublishes(t *target, i int, stop <-chan struct{}) error {
	publish := wire.AppendPublish(nil, 0, false, 0, fmt.Sprint("flood/", i), nil, binary.BigEndian.AppendUint64(nil, uint64(i)))
	return pour(connectTo(t), bytes.Repeat(publish, 2000), stop)
}
