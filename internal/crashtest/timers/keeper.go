// Package timers has the actor of a crash test that sets timers and cancels them (protocol, section
// 14), and checks which of their messages come.
package timers

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

const (
	topic   = "crashtest/timers"
	replies = "crashtest/replies/keeper"

	mostOpen    = 20 // requests under way
	mostWaiting = 60 // timers that are set and have not come
	longestMs   = 400
)

// Counts is what a keeper has done.
type Counts struct {
	Set       int `json:"set"`       // timers whose setting was acknowledged
	Cancelled int `json:"cancelled"` // timers whose cancelling was acknowledged
	Came      int `json:"came"`      // messages, without duplicates
	Unknown   int `json:"unknown"`   // requests whose answer was lost with the broker
}

// Keeper sets timers. A timer that was acknowledged comes, not before it is due: once at QoS 2, at
// least once at QoS 1. One that was cancelled never comes.
type Keeper struct {
	rng      *rand.Rand
	clock    *hlc.Clock
	session  bool // it has one at the broker
	begun    int  // connections made
	number   int
	timers   map[int]*timer
	received map[uint16]bool // packet identifiers of messages at QoS 2, until their PUBREL
	Counts
}

// timer is what the keeper knows of one.
type timer struct {
	qos       byte
	due       int64 // by lives.Now; not before that
	set       bool  // acknowledged
	cancelled bool  // acknowledged
	unsure    bool  // a request to cancel it is under way, or its answer was lost
	came      int
}

// NewKeeper makes a keeper.
func NewKeeper(rng *rand.Rand) *Keeper {
	return &Keeper{rng: rng, clock: hlc.NewClock("keeper"), timers: map[int]*timer{}, received: map[uint16]bool{}}
}

// watch is the keeper's work on one connection.
type watch struct {
	*lives.Link
	*Keeper
	life   *lives.Life
	lastID uint16
	asked  int
	open   map[string]request // TXNs under way, by correlation data
	sent   map[uint16]int     // PUBLISHes of timers under way, by packet identifier
}

// request is a TXN that sets or cancels a timer.
type request struct {
	timer  int
	cancel bool
}

// Live implements lives.Actor.
func (k *Keeper) Live(l *lives.Life) error {
	w, err := k.begin(l)
	if err != nil {
		return l.Ended("the keeper of timers", err)
	}
	defer w.Close()
	for err == nil && !(l.Settle && len(w.open)+len(w.sent)+w.expected() == 0) {
		w.work()
		var p lives.Packet
		if p, err = w.Exchange(); err == nil {
			err = w.handle(p)
		}
	}
	k.Unknown += len(w.open) + len(w.sent)
	if err == nil {
		err = w.Disconnect(mqtt.Disconnect{SessionExpiry: lives.SessionExpiry, HasSessionExpiry: true})
	}
	if err != nil {
		return l.Ended("the keeper of timers", err)
	}
	return nil
}

func (k *Keeper) begin(l *lives.Life) (*watch, error) {
	link, ack, err := lives.Dial(l, mqtt.Connect{ClientID: []byte("keeper"), SessionExpiry: lives.SessionExpiry, KeepAlive: 60})
	if err != nil {
		return nil, err
	}
	l.Arrivals.Count()
	k.begun++
	w := &watch{Link: link, Keeper: k, life: l, open: map[string]request{}, sent: map[uint16]int{}}
	if k.session && !ack.SessionPresent {
		link.Close()
		return nil, fmt.Errorf("%w: the session of the keeper is gone", lives.ErrBroken)
	}
	for _, filter := range []string{topic, replies} {
		if code, err := link.Subscribe(filter, 2, w.handle); err != nil || code != mqtt.GrantedQoS2 {
			link.Close()
			return nil, fmt.Errorf("SUBACK %v: %w", code, err)
		}
	}
	k.session = true
	return w, nil
}

// expected is how many timers must still come.
func (k *Keeper) expected() (n int) {
	for _, t := range k.timers {
		if t.set && !t.cancelled && !t.unsure && t.came == 0 {
			n++
		}
	}
	return n
}

// work sets timers, as far as there is room.
func (w *watch) work() {
	for !w.life.Settle && len(w.open)+len(w.sent) < mostOpen && w.expected() < mostWaiting {
		w.set()
	}
}

// set sets a timer: at QoS 1 by a PUBLISH, at QoS 2 by a TXN.
func (w *watch) set() {
	w.number++
	ms := w.rng.Int64N(longestMs)
	t := &timer{qos: byte(1 + w.rng.IntN(2)), due: lives.Now() + ms*int64(time.Millisecond)}
	w.timers[w.number] = t
	text := strconv.Itoa(w.number)
	properties := [][2]string{{delay.AfterProperty, strconv.FormatInt(ms, 10)}, {delay.IDProperty, id(w.number)}}
	if t.qos == 2 {
		words := []string{"TXN", "PUBLISH", topic, text, "QOS", "2"}
		for _, p := range properties {
			words = append(words, "USER", p[0], p[1])
		}
		w.ask(request{timer: w.number}, words...)
		return
	}
	var raw []byte
	for _, p := range properties {
		raw = mqtt.AppendUserProp(raw, p[0], p[1])
	}
	packetID := w.nextID()
	w.sent[packetID] = w.number
	w.Out = mqtt.AppendPublish(w.Out, mqtt.V5, &mqtt.Publish{QoS: 1, PacketID: packetID, Topic: []byte(topic), Payload: []byte(text), Props: mqtt.PublishProps{Raw: raw}})
}

func id(number int) string { return "timer/" + strconv.Itoa(number) }

func (w *watch) ask(r request, words ...string) {
	w.asked++
	correlation := w.prefix() + strconv.Itoa(w.asked)
	w.open[correlation] = r
	args := make([][]byte, len(words))
	for i := range words {
		args[i] = []byte(words[i])
	}
	w.Out = mqtt.AppendPublish(w.Out, mqtt.V5, &mqtt.Publish{
		QoS: 1, PacketID: w.nextID(), Topic: []byte(protocol.InvokeTopic), Payload: protocol.AppendCommand(nil, args...),
		Props: mqtt.PublishProps{
			HasResponseTopic: true, ResponseTopic: []byte(replies), HasCorrelationData: true, CorrelationData: []byte(correlation),
			Raw: mqtt.AppendUserProp(nil, protocol.TimeProperty, w.clock.Now().String()),
		},
	})
}

// prefix is what the correlation data of requests over this connection begin with.
func (w *watch) prefix() string { return strconv.Itoa(w.begun) + "/" }

func (w *watch) nextID() uint16 {
	w.lastID = w.lastID%30_000 + 1
	return w.lastID
}

func (w *watch) handle(p lives.Packet) error {
	switch p.Type {
	case mqtt.PUBACK:
		var ack mqtt.Ack
		if err := ack.Decode(mqtt.V5, mqtt.PUBACK, p.Body); err != nil || ack.Code.Failed() {
			return fmt.Errorf("%w: PUBACK %v (%v) for the keeper", lives.ErrBroken, ack.Code, err)
		}
		if number, is := w.sent[ack.PacketID]; is {
			delete(w.sent, ack.PacketID)
			w.acknowledged(number)
		}
		return nil
	case mqtt.PUBREL:
		var ack mqtt.Ack
		if err := ack.Decode(mqtt.V5, mqtt.PUBREL, p.Body); err != nil {
			return fmt.Errorf("%w: %w", lives.ErrBroken, err)
		}
		delete(w.received, ack.PacketID)
		w.Ack(mqtt.PUBCOMP, ack.PacketID, mqtt.Success)
		return nil
	case mqtt.PUBLISH:
		return w.message(p)
	}
	return fmt.Errorf("%w: unexpected %v", lives.ErrBroken, p.Type)
}

func (w *watch) message(p lives.Packet) error {
	at := lives.Now()
	var m mqtt.Publish
	if err := m.DecodeDelivery(mqtt.V5, p.Header, p.Body); err != nil {
		return fmt.Errorf("%w: %w", lives.ErrBroken, err)
	}
	again := false
	switch m.QoS {
	case 1:
		w.Ack(mqtt.PUBACK, m.PacketID, mqtt.Success)
	case 2:
		again = w.received[m.PacketID]
		w.received[m.PacketID] = true
		w.Ack(mqtt.PUBREC, m.PacketID, mqtt.Success)
	}
	switch {
	case string(m.Topic) == replies:
		return w.reply(string(m.Props.CorrelationData), string(m.Payload))
	case again:
		return nil
	}
	number, err := strconv.Atoi(string(m.Payload))
	t := w.timers[number]
	if err != nil || t == nil || string(m.Topic) != topic || m.QoS != t.qos {
		return fmt.Errorf("%w: the keeper got %q on %q at QoS %d", lives.ErrBroken, m.Payload, m.Topic, m.QoS)
	}
	w.life.Arrivals.Count()
	t.came++
	if t.came == 1 {
		w.Came++
	}
	return t.check(number, at)
}

// check compares a timer that has come, or was cancelled, with what was promised.
func (t *timer) check(number int, at int64) error {
	const clocks = int64(2 * time.Millisecond) // what the broker's clock rounds
	switch {
	case t.cancelled && t.came > 0:
		return fmt.Errorf("%w: timer %d was cancelled, and came", lives.ErrBroken, number)
	case t.came > 1 && t.qos == 2:
		return fmt.Errorf("%w: timer %d came %d times at QoS 2", lives.ErrBroken, number, t.came)
	case t.came > 0 && at < t.due-clocks:
		return fmt.Errorf("%w: timer %d came %v before it was due", lives.ErrBroken, number, time.Duration(t.due-at))
	}
	return nil
}

// acknowledged notes that a timer is set, and has every fourth cancelled.
func (w *watch) acknowledged(number int) {
	w.life.Acks.Count()
	t := w.timers[number]
	t.set = true
	w.Set++
	if w.rng.IntN(4) == 0 {
		t.unsure = true
		w.ask(request{number, true}, "TXN", "CANCEL", id(number))
	}
}

func (w *watch) reply(correlation, payload string) error {
	r, is := w.open[correlation]
	if !is && !strings.HasPrefix(correlation, w.prefix()) && w.InCluster() {
		return nil // of a request over an earlier connection, whose outcome counts as unknown
	}
	if !is {
		return fmt.Errorf("%w: the keeper got the reply %q a second time", lives.ErrBroken, payload)
	}
	delete(w.open, correlation)
	switch {
	case !r.cancel && payload == "*2\r\n:1\r\n*0\r\n":
		w.acknowledged(r.timer)
		return nil
	case r.cancel && strings.HasPrefix(payload, "*3\r\n:1\r\n*0\r\n*1\r\n:"):
		w.life.Acks.Count()
		t := w.timers[r.timer]
		t.unsure = false
		if t.cancelled = strings.HasSuffix(payload, ":1\r\n"); t.cancelled {
			w.Cancelled++
		}
		return t.check(r.timer, t.due)
	}
	return fmt.Errorf("%w: the keeper got the reply %q", lives.ErrBroken, payload)
}
