package server

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// steps are what one client does in its nth step: a transaction that touches everything at once, and beside
// it a QoS 2 handshake, and a session that begins in one step and ends in the next. So what a power cut leaves
// can be judged by itself: it is what steps 1 to N have made, with N as many as were acknowledged or one more.
type steps struct {
	t *testing.T

	sent, acked atomic.Int64 // transactions
	received    atomic.Int64 // QoS 2 publishes with a PUBREC: each reaches its subscriber once
	begun       atomic.Int64 // step of the last session with a CONNACK
	ended       atomic.Int64 // step of the last session whose end has a CONNACK
}

// keptTimers is how many timers wait: each step sets one, and cancels the one of so many steps before.
const keptTimers = 5

// transaction is that of step n.
func transaction(n int64) []string {
	return strings.Fields(fmt.Sprintf("TXN SET last %d SET k/%d %d ONCE once m%d"+
		" PUBLISH out %d QOS 2 PUBLISH state %d RETAIN"+
		" PUBLISH due %d USER holdfast-deliver-after %d USER holdfast-timer-id due%d"+
		" PUBLISH far %d USER holdfast-deliver-after 3600000 USER holdfast-timer-id far%d CANCEL far%d",
		n, n%7, n, n, n, n, n, n%3, n, n, n, n-keptTimers))
}

func (b *steps) next(addr string, r, publisher *mqtttest.Client) {
	b.t.Helper()
	n := b.sent.Add(1)
	r.Write(request(nil, "r", uint16(n), stamp(), transaction(n)...))
	q := publisher.SendPublish(mqtttest.Message{Topic: "handshakes", Payload: fmt.Sprint(n), QoS: 2, PacketID: uint16(n)})
	s := mqtttest.Dial(b.t, addr)
	if n%2 == 1 {
		s.Connect(mqtttest.Persistent(fmt.Sprint("session/", n)))
		b.begun.Store(n)
	} else {
		s.Connect(mqtttest.ClientID(fmt.Sprint("session/", n-1))) // a clean start, and no expiry
		b.ended.Store(n)
	}
	s.Disconnect()
	publisher.AwaitAck(mqtt.PUBREC, q)
	b.received.Store(n)
	publisher.Release(q)
	r.AwaitAck(mqtt.PUBACK, uint16(n))
	if got := r.Receive(); !strings.HasPrefix(got.Payload, "*3\r\n:1\r\n") {
		b.t.Fatalf("step %d: %q", n, got.Payload)
	}
	b.acked.Store(n)
}

// moment is what a client had been told when the power failed.
type moment struct {
	left                   *vfs.MemFS
	before                 string // the operation that did not come to pass
	acked, sent            int64
	received, begun, ended int64
}

var timerIDs = regexp.MustCompile(`far(\d+)\r`)

// audit looks at what a power cut left, and returns how many steps it has.
func (b *steps) audit(addr string, m *moment) int64 {
	t := b.t
	t.Helper()
	r := mqtttest.Connect(t, addr, mqtttest.ClientID("audit"))
	r.Subscribe(responseTopic+"/audit", 1)
	id := uint16(0)
	ask := func(words ...string) string {
		id++
		r.Write(request(nil, "audit", id, stamp(), words...))
		r.AwaitAck(mqtt.PUBACK, id)
		return r.Receive().Payload
	}
	_, last, _ := strings.Cut(ask("GET", "last"), "\r\n")
	n, _ := strconv.ParseInt(strings.TrimSpace(last), 10, 64)
	if n < m.acked || n > m.sent {
		t.Fatalf("before %s: %d steps are left, %d were acknowledged and %d begun", m.before, n, m.acked, m.sent)
	}
	wrong := func(what string, got, want any) {
		t.Helper()
		t.Errorf("before %s, of %d steps: %s: %v, want %v", m.before, n, what, got, want)
	}
	for k := max(1, n-6); k <= n; k++ {
		if got, want := ask("GET", fmt.Sprint("k/", k%7)), fmt.Sprintf("$%d\r\n%d\r\n", len(fmt.Sprint(k)), k); got != want {
			wrong("key", got, want)
		}
	}
	for k, want := range map[int64]string{n: ":2", n + 1: ":0"} { // remembered as done, and not at all
		if got := strings.Split(ask("LOAD", "once", fmt.Sprint("m", k)), "\r\n"); k > 0 && got[1] != want {
			wrong(fmt.Sprint("message m", k), got, want)
		}
	}
	var far []int64
	for _, found := range timerIDs.FindAllStringSubmatch(ask("TIMERS", "far"), -1) {
		k, _ := strconv.ParseInt(found[1], 10, 64)
		far = append(far, k)
	}
	slices.Sort(far)
	var want []int64
	for k := max(1, n-keptTimers+1); k <= n; k++ {
		want = append(want, k)
	}
	if !slices.Equal(far, want) {
		wrong("timers that wait", far, want)
	}
	r.Subscribe("state", 1)
	if n > 0 {
		if got := r.Receive(); got.Payload != fmt.Sprint(n) {
			wrong("retained message", got, n)
		}
	}
	r.Disconnect()

	resumes := func(k int64) bool {
		s := mqtttest.Dial(t, addr)
		s.Connect(mqtttest.Persistent(fmt.Sprint("session/", k)), mqtttest.Resume())
		defer s.Disconnect()
		return s.Connack.SessionPresent
	}
	if k := m.begun; k > 0 && m.sent == k && !resumes(k) {
		wrong(fmt.Sprint("session of step ", k), "gone", "there")
	}
	if k := m.ended - 1; k > 0 && resumes(k) {
		wrong(fmt.Sprint("session of step ", k), "there", "gone")
	}
	return n
}

// queued gives what waits for the subscriber, which takes it.
func (b *steps) queued(addr string, n int64) (byTopic map[string][]int64) {
	b.t.Helper()
	c := mqtttest.Connect(b.t, addr, mqtttest.Persistent("subscriber"), mqtttest.Resume())
	byTopic = map[string][]int64{}
	for int64(len(byTopic["due"])) < n { // timers of the last steps are due only now
		got := c.Receive()
		k, _ := strconv.ParseInt(got.Payload, 10, 64)
		byTopic[got.Topic] = append(byTopic[got.Topic], k)
	}
	for _, got := range c.Collect() {
		k, _ := strconv.ParseInt(got.Payload, 10, 64)
		byTopic[got.Topic] = append(byTopic[got.Topic], k)
	}
	c.Disconnect()
	c.AwaitEnd()
	return byTopic
}

func upTo(n int64) (all []int64) {
	for k := range n {
		all = append(all, k+1)
	}
	return all
}

// The power fails at any step that a server takes on the disk while a client does everything at once:
// transactions over keys, messages, retained messages and timers, handshakes of QoS 2, sessions that begin and
// end. Each transaction is there as a whole or not at all, and all that was acknowledged is there; of what the
// disk had not synced any part is there.
func TestPowerCutsWhileEverythingHappens(t *testing.T) {
	t.Parallel()
	for seed := range uint64(journaltest.Some(16)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			b := &steps{t: t}
			m := b.liveUntilPowerCut(t, rng)
			s := startIn(t, "data", func(c *Config) { c.FS = m.left })
			addr := s.Addrs()[0].String()
			n := b.audit(addr, m)
			got := b.queued(addr, n)
			for _, topic := range []string{"out", "due"} {
				slices.Sort(got[topic]) // timers that are due at once come in any order
				if !slices.Equal(got[topic], upTo(n)) {
					t.Errorf("before %s: the subscriber gets %v on %s, want 1 to %d", m.before, got[topic], topic, n)
				}
			}
			if h := got["handshakes"]; !slices.Equal(h, upTo(int64(len(h)))) || int64(len(h)) < m.received || int64(len(h)) > m.sent {
				t.Errorf("before %s: the subscriber gets %v at QoS 2, %d have a PUBREC", m.before, h, m.received)
			}
		})
	}
}

// liveUntilPowerCut runs a server until the power fails.
func (b *steps) liveUntilPowerCut(t *testing.T, rng *rand.Rand) *moment {
	t.Helper()
	mem := vfs.NewCrashableMem()
	var operations atomic.Int64
	at, percent := rng.Int64N(200), rng.IntN(3)*50
	armed, m := new(atomic.Bool), new(moment)
	crashed := make(chan struct{})
	disk := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if armed.Load() && journaltest.ChangesDisk(op) && operations.Add(1) == at+1 {
			m.before = fmt.Sprintf("operation %d on %s", op.Kind, op.Path)
			m.received, m.begun, m.ended, m.acked = b.received.Load(), b.begun.Load(), b.ended.Load(), b.acked.Load()
			m.left = journaltest.PowerOff(mem, percent, rng)
			m.sent = b.sent.Load()
			close(crashed)
		}
		return nil
	}))
	s := startIn(t, "data", func(c *Config) { c.FS = disk })
	addr := s.Addrs()[0].String()
	subscriber := mqtttest.Connect(t, addr, mqtttest.Persistent("subscriber"))
	subscriber.SubscribeWith(0, mqtttest.Sub{Filter: "out", QoS: 2}, mqtttest.Sub{Filter: "due", QoS: 1}, mqtttest.Sub{Filter: "handshakes", QoS: 2})
	subscriber.Disconnect()
	subscriber.AwaitEnd()
	r := mqtttest.Connect(t, addr, mqtttest.ClientID("r"))
	r.Subscribe(responseTopic+"/r", 1)
	publisher := mqtttest.Connect(t, addr, mqtttest.Persistent("publisher"))
	armed.Store(true)
	for n := 1; ; n++ {
		select {
		case <-crashed:
			return m
		default:
		}
		b.next(addr, r, publisher)
		if n%10 == 9 {
			if err := s.journal.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
