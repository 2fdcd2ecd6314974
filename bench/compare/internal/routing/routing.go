// Package routing compares brokers at routing messages from publishers to subscribers.
package routing

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// routing is publishers and subscribers at work.
type routing struct {
	name        string
	publishers  int
	subscribers int
	copies      int // deliveries of one publish
	qos         byte
	window      int    // publishes under way per publisher
	expiry      uint32 // of the subscribers' sessions, in seconds
	topic       func(publisher int) string
	filter      func(subscriber int) string
	limit       int // deliveries under way
	servers     []string
}

func fixed(s string) func(int) string { return func(int) string { return s } }

func numbered(format string) func(int) string {
	return func(i int) string { return fmt.Sprintf(format, i) }
}

func routings() []routing {
	brokers := []string{servers.Holdfast, servers.Mochi, servers.Mosquitto}
	durable := []string{servers.Holdfast, servers.HoldfastNone, servers.NatsSync}
	all := []routing{}
	for qos := range byte(3) {
		all = append(all, routing{
			name: fmt.Sprint("fan-out 1 → 100, QoS ", qos), publishers: 1, subscribers: 100, copies: 100, qos: qos, window: 16,
			topic: fixed("fan/out"), filter: fixed("fan/out"), limit: 6400, servers: brokers,
		})
	}
	all = append(all,
		routing{
			name: "fan-in 100 → 1, QoS 1", publishers: 100, subscribers: 1, copies: 1, qos: 1, window: 16,
			topic: numbered("fan/in/%d"), filter: fixed("fan/in/+"), limit: 8000, servers: brokers,
		},
		routing{
			name: "shared 10 → 10, QoS 1", publishers: 10, subscribers: 10, copies: 1, qos: 1, window: 16,
			topic: numbered("shared/%d"), filter: fixed("$share/group/shared/+"), limit: 4000, servers: brokers,
		},
	)
	for _, s := range []struct{ pairs, window int }{{50, 1}, {50, 16}, {200, 1}} {
		all = append(all, routing{
			name: fmt.Sprintf("persistent %d pairs × %d, QoS 1", s.pairs, s.window), publishers: s.pairs, subscribers: s.pairs, copies: 1, qos: 1, window: s.window, expiry: 3600,
			topic: numbered("pair.%d"), filter: numbered("pair.%d"), limit: 20_000, servers: durable,
		})
	}
	return all
}

// Persistent gives the names of the routings whose subscribers' sessions outlive their connections.
func Persistent() (names []string) {
	for _, r := range routings() {
		if r.expiry > 0 {
			names = append(names, r.name)
		}
	}
	return names
}

// payloadSize is how many bytes a routed message carries; the first eight say
// when it was sent.
const payloadSize = 64

// traffic is one round of a routing.
type traffic struct {
	routing
	target    *servers.Target
	gate      *gate
	delivered atomic.Int64
	epoch     time.Time
	wait      sync.WaitGroup
	closers   []func()
	ended     atomic.Bool

	mu  sync.Mutex
	h   latency.Histogram // under mu
	err error             // under mu; the first
}

// subscriberFigures is what one subscriber measures; the round's get them at
// its end.
type subscriberFigures struct {
	t *traffic
	h latency.Histogram
}

// got notes a delivery, of which the payload is given.
func (s *subscriberFigures) got(payload []byte) {
	sent := time.Duration(binary.LittleEndian.Uint64(payload))
	s.h.Add(time.Since(s.t.epoch)-sent, 1)
}

func (s *subscriberFigures) done() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.h.Merge(&s.h)
}

// fail notes the first error, if there is one, and ends the round.
func (t *traffic) fail(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
	t.gate.close()
}

// unlessEnded takes an error for what it is: at the round's end connections
// close.
func (t *traffic) unlessEnded(err error) error {
	if t.ended.Load() {
		return nil
	}
	return err
}

// Measure compares brokers at each kind of routing; they take turns.
func Measure(ctx context.Context, run *work.Run) error {
	targets := map[string]*servers.Target{}
	names := []string{servers.Holdfast, servers.HoldfastNone, servers.Mochi, servers.Mosquitto, servers.NatsSync}
	for _, name := range names {
		if t := run.Lab.Start(ctx, name); t != nil {
			defer t.Stop()
			targets[name] = t
		}
	}
	for _, r := range routings() {
		if run.Quick && r.publishers == 200 {
			continue
		}
		for range run.Report.Rounds {
			for _, name := range r.servers {
				t := targets[name]
				if t == nil {
					continue
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				f, err := r.run(t, run.RoundTime)
				run.Report.Add(r.name, name, f, err)
			}
		}
	}
	for _, name := range names {
		if t := targets[name]; t != nil {
			run.Report.Measure("routing", name, "peak memory", float64(t.Procs.Memory("VmHWM"))/(1<<20), "MiB")
		}
	}
	return nil
}

// run measures one round: deliveries per second, and from the publish to the
// delivery.
func (r routing) run(target *servers.Target, d time.Duration) (report.Figures, error) {
	t := &traffic{routing: r, target: target, gate: newGate(r.limit), epoch: time.Now()}
	defer t.end()
	if err := t.begin(); err != nil {
		return report.Figures{}, err
	}
	time.Sleep(d / 5)
	count, cpu, start := t.delivered.Load(), target.Procs.CPU(), time.Now()
	time.Sleep(d)
	for t.delivered.Load()-count < t.enough() && time.Since(start) < 2*time.Second {
		time.Sleep(d / 5) // a server so slow that a round would count next to nothing
	}
	count, cpu = t.delivered.Load()-count, target.Procs.CPU()-cpu
	elapsed := time.Since(start)
	t.gate.close()
	missing := t.gate.drain(5 * time.Second)
	t.end() // from here on t is ours alone
	switch {
	case t.err != nil:
		return report.Figures{}, t.err
	case missing != 0 && t.qos > 0:
		return report.Figures{}, fmt.Errorf("%d deliveries missing", missing)
	case missing != 0:
		log.Printf("%s, %s: %d of %d deliveries missing", r.name, target.Name, missing, count)
	}
	f := report.FiguresOf(&t.h, elapsed, 0)
	f.PerSecond = float64(count) / elapsed.Seconds()
	f.CPUPerMillion = cpu.Seconds() / float64(max(count, 1)) * 1e6
	return f, nil
}

// enough is how many deliveries make a round: twice what may be under way from
// one window of every publisher.
func (r routing) enough() int64 { return int64(2 * r.publishers * r.window * r.copies) }

// end closes what the round opened and waits for its goroutines.
func (t *traffic) end() {
	t.ended.Store(true)
	t.gate.close()
	for _, c := range t.closers {
		c()
	}
	t.closers = nil
	t.wait.Wait()
}

func (t *traffic) begin() error {
	join := t.joinMQTT
	if t.target.Protocol == servers.SpeaksNATS {
		join = t.joinNATS
	}
	return join()
}

func (t *traffic) joinMQTT() error {
	for i := range t.subscribers {
		c, err := client.DialMQTT(t.target.Addr, fmt.Sprint("subscriber-", i), t.expiry, 32<<10)
		if err != nil {
			return err
		}
		t.closers = append(t.closers, func() { c.Close() })
		if err := c.Subscribe(t.filter(i), t.qos); err != nil {
			return err
		}
		t.wait.Go(func() { t.fail(t.receive(c)) })
	}
	for i := range t.publishers {
		c, err := client.DialMQTT(t.target.Addr, fmt.Sprint("publisher-", i), 0, 4<<10)
		if err != nil {
			return err
		}
		t.closers = append(t.closers, func() { c.Close() })
		t.wait.Go(func() { t.fail(t.publish(c, t.topic(i))) })
	}
	return nil
}

// receive takes deliveries, acknowledges them, and ends with the connection.
func (t *traffic) receive(c *client.Connection) error {
	figures := subscriberFigures{t: t}
	defer figures.done()
	var m wire.Message
	for {
		if err := c.Fill(); err != nil {
			return t.unlessEnded(err)
		}
		got := 0
		for {
			header, body, n := c.Packet()
			if n == 0 {
				break
			}
			switch header & 0xF0 {
			case wire.Publish:
				m.Parse(header, body)
				figures.got(m.Payload)
				got++
				switch t.qos {
				case 1:
					c.Out = wire.AppendAck(c.Out, wire.Puback, m.ID)
				case 2:
					c.Out = wire.AppendAck(c.Out, wire.Pubrec, m.ID)
				}
			case wire.Pubrel & 0xF0:
				c.Out = wire.AppendAck(c.Out, wire.Pubcomp, binary.BigEndian.Uint16(body))
			case wire.Disconnect:
				return fmt.Errorf("DISCONNECT % x", body)
			}
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

// publish sends window after window while the gate is open.
func (t *traffic) publish(c *client.Connection, topic string) error {
	var window []byte
	var stamps []int // where the payloads begin
	for i := range t.window {
		window = wire.AppendPublish(window, t.qos, false, uint16(i+1), topic, nil, make([]byte, payloadSize))
		stamps = append(stamps, len(window)-payloadSize)
	}
	for t.gate.enter(t.window * t.copies) {
		now := uint64(time.Since(t.epoch))
		for _, at := range stamps {
			binary.LittleEndian.PutUint64(window[at:], now)
		}
		if _, err := c.Write(window); err != nil {
			return t.unlessEnded(err)
		}
		if t.qos == 0 {
			continue
		}
		if err := t.awaitAcks(c); err != nil {
			return t.unlessEnded(err)
		}
	}
	return nil
}

// awaitAcks reads a window's acknowledgements, and gives their answers at QoS 2.
func (t *traffic) awaitAcks(c *client.Connection) error {
	for acks := 0; acks < t.window; {
		if err := c.Fill(); err != nil {
			return err
		}
		for {
			header, body, n := c.Packet()
			if n == 0 {
				break
			}
			if len(body) > 2 && body[2] >= 0x80 {
				return fmt.Errorf("refused: % x", body)
			}
			switch header & 0xF0 {
			case wire.Puback, wire.Pubcomp:
				acks++
			case wire.Pubrec:
				c.Out = wire.AppendAck(c.Out, wire.Pubrel, binary.BigEndian.Uint16(body))
			}
		}
		if len(c.Out) > 0 {
			if err := c.Send(); err != nil {
				return err
			}
		}
	}
	return nil
}
