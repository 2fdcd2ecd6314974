package abuse

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// bystanderKeys are spread over the store's parts, so that one that hangs is met.
const bystanderKeys = 256

// bystander is an ordinary client: it reads, writes and publishes, one round trip after
// the other, and records how long each takes.
type bystander struct {
	link  *link
	limit time.Duration // for one round trip
	round int
	stop  chan struct{}
	done  chan struct{}

	gets, sets, publishes Latencies // of the phase under way
	err                   error     // why it gave up
}

// pause between two rounds, so that the bystander is no load itself.
const pause = time.Millisecond

func newBystander(addr string, limit time.Duration) (*bystander, error) {
	k, err := enter(addr, "bystander", limit)
	if err != nil {
		return nil, err
	}
	b := &bystander{link: k, limit: limit}
	if err := k.subscribe(1, limit, "bystander/echo"); err != nil {
		k.close()
		return nil, err
	}
	for i := range bystanderKeys {
		if err := b.set(i); err != nil {
			k.close()
			return nil, err
		}
	}
	return b, nil
}

// enter connects a client that takes responses.
func enter(addr, id string, limit time.Duration) (*link, error) {
	nc, err := dialFrom(loopback, addr, limit)
	if err != nil {
		return nil, err
	}
	k := newLink(nc)
	if err := k.connect(id, 0, limit); err != nil {
		k.close()
		return nil, err
	}
	if err := k.takeReplies(limit); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// begin goes on in the background, with new figures.
func (b *bystander) begin() {
	b.stop, b.done = make(chan struct{}), make(chan struct{})
	b.gets, b.sets, b.publishes = nil, nil, nil
	go func() {
		defer close(b.done)
		for b.err == nil { // one round at least, so that there are figures
			if b.err = b.oneRound(); b.err != nil {
				return
			}
			select {
			case <-b.stop:
				return
			case <-time.After(pause):
			}
		}
	}()
}

// end stops after the round trip under way and gives the figures since begin.
func (b *bystander) end() Service {
	close(b.stop)
	<-b.done
	return Service{Get: b.gets.summary(), Set: b.sets.summary(), Publish: b.publishes.summary()}
}

func (b *bystander) oneRound() error {
	b.round++
	for _, step := range []struct {
		into *Latencies
		do   func(int) error
	}{{&b.gets, b.get}, {&b.sets, b.set}, {&b.publishes, b.echo}} {
		begun := time.Now()
		err := step.do(b.round % bystanderKeys)
		*step.into = append(*step.into, time.Since(begun))
		if err != nil {
			return err
		}
	}
	return nil
}

func bystanderKey(i int) string { return "bystander/" + strconv.Itoa(i) }

func (b *bystander) get(i int) error {
	r, err := b.link.ask(b.limit, "GET", bystanderKey(i))
	if err == nil && r.Kind != protocol.Blob {
		return fmt.Errorf("GET %s: got %q, want a value", bystanderKey(i), r.Text)
	}
	return err
}

func (b *bystander) set(i int) error {
	r, err := b.link.ask(b.limit, "SET", bystanderKey(i), "value")
	if err == nil && r.Kind != protocol.Simple {
		return fmt.Errorf("SET %s: got %q, want OK", bystanderKey(i), r.Text)
	}
	return err
}

// echo publishes a message to itself.
func (b *bystander) echo(i int) error {
	payload := strconv.AppendInt(nil, int64(b.round), 10)
	if err := b.link.write(b.link.publish(1, false, "bystander/echo", payload), b.limit); err != nil {
		return err
	}
	deadline := time.Now().Add(b.limit)
	for acked, came := false, false; !acked || !came; {
		p, err := b.link.read(deadline)
		if err != nil {
			return fmt.Errorf("PUBLISH to itself: %w", err)
		}
		switch p.typ() {
		case mqtt.PUBACK:
			acked = true
		case mqtt.PUBLISH:
			var m mqtt.Publish
			if err := m.DecodeDelivery(mqtt.V5, p.header, p.body); err != nil {
				return err
			}
			if m.QoS == 1 {
				ack := mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBACK, m.PacketID, mqtt.Success, "")
				if err := b.link.write(ack, b.limit); err != nil {
					return err
				}
			}
			came = came || bytes.Equal(m.Payload, payload)
		case mqtt.DISCONNECT:
			var d mqtt.Disconnect
			_ = d.Decode(mqtt.V5, p.body)
			return fmt.Errorf("PUBLISH to itself: DISCONNECT %v %s", d.Code, d.ReasonString)
		}
	}
	return nil
}

// Latencies are of round trips.
type Latencies []time.Duration

// Latency sums up many round trips.
type Latency struct {
	Count              int
	Median, P99, Worst time.Duration
}

func (l Latencies) summary() Latency {
	if len(l) == 0 {
		return Latency{}
	}
	slices.Sort(l)
	return Latency{Count: len(l), Median: l[len(l)/2], P99: l[len(l)*99/100], Worst: l[len(l)-1]}
}

// Service is what a client was served.
type Service struct{ Get, Set, Publish Latency }

// worst is the longest of all round trips.
func (s Service) worst() time.Duration { return max(s.Get.Worst, s.Set.Worst, s.Publish.Worst) }

// visit is what a newcomer does: connect, read a key, list keys, leave.
func visit(addr, id string, limit time.Duration) error {
	k, err := enter(addr, id, limit)
	if err != nil {
		return err
	}
	defer k.close()
	r, err := k.ask(limit, "GET", bystanderKey(0))
	switch {
	case err != nil:
		return err
	case r.Kind != protocol.Blob:
		return fmt.Errorf("GET: got %q, want a value", r.Text)
	}
	r, err = k.ask(limit, "SCAN", "bystander/1?")
	switch {
	case err != nil:
		return err
	case r.Kind != protocol.Array:
		return fmt.Errorf("SCAN: got %q, want keys", r.Text)
	}
	return nil
}
