package statefuzz

import (
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

var (
	duration = flag.Duration("for", 2*time.Second, "how long TestSequences plays")
	firstOne = flag.Uint64("seed", 0, "seed of the first sequence of TestSequences; 0: by chance")
)

// world is the server that is played against, and the connections that check it.
type world struct {
	addr   string
	errors errorLog
	at     baseline
	test   string // that plays
	played int
}

// baseline is what the server takes when nothing goes on.
type baseline struct {
	goroutines, sockets int
	files               []string // the open descriptors that are not sockets
	objects, bytes      uint64   // of the heap
}

// errorLog takes what the server logs as an error, and says during which sequence.
type errorLog struct {
	seed atomic.Uint64
	said atomic.Int64
}

func (l *errorLog) Write(line []byte) (int, error) {
	l.said.Add(1)
	fmt.Fprintf(os.Stderr, "statefuzz: seed %d: %s", l.seed.Load(), line)
	return len(line), nil
}

// window is how many keys are asked for at once.
const window = 12

// checkedKeys are enough keys to have some in each shard of the store, and most of
// its stripes.
const checkedKeys = 700

// bounded are Permissions to do everything, with quotas that count it. All clients come from
// one address, which is their principal: what the server did not stop counting would keep
// them out in time.
type bounded struct{ access.AllowAll }

var grants = access.Grants{Quota: access.Quota{
	Connections: 64, Subscriptions: maxSessions*maxFilters + 50, Keys: checkedKeys + 50, KeyBytes: 1 << 20, Retained: 20, RetainedBytes: 200 << 10,
	Publishes: 1 << 30, PublishBytes: 1 << 40, TimestampSkew: time.Minute,
}}

func (bounded) Grants(*access.Identity) *access.Grants { return &grants }

// maxDelayMs is how far off a timer may be, in ms.
const maxDelayMs = 1000

// maxSessions is how many sessions there may be.
const maxSessions = 40

func startWorld() *world {
	w := &world{}
	w.addr = testserver.StartShared(func(c *server.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&w.errors, &slog.HandlerOptions{Level: slog.LevelError}))
		c.SysInterval = 20 * time.Millisecond
		c.MaxMemory = 512 << 20
		c.May = bounded{}
		c.MaxKeySize, c.MaxKeys, c.MaxStoreBytes = maxKey, checkedKeys+50, 1<<20
		c.MaxWatches, c.MaxRemembered, c.MaxScans = 10, 100*(checkedKeys+100), 2
		c.Remember, c.MaxRemember = time.Second, 2*time.Second
		c.Limits = broker.Limits{
			MaxConnections: 64, MaxSessions: maxSessions, MaxSessionExpiry: maxExpiry * time.Second, MaxPacketSize: maxPacket,
			ConnectTimeout: 10 * time.Second, TakeoverWait: 100 * time.Millisecond, ReceiveMaximum: maxReceive, TopicAliasMaximum: maxAlias,
			MaxInflight: 16, MaxInflightV3: 4, MaxQueued: 40, MaxQueuedBytes: 200 << 10, MaxTotalQueued: 150, MaxTotalQueuedBytes: 600 << 10,
			MaxNotifications: 20, MaxSubscriptions: maxFilters, MaxTopicLevels: maxLevels, MaxClientID: maxClientID,
			MaxRetained: 20, MaxRetainedBytes: 200 << 10, OutputBuffer: 16 << 10,
			MaxDelay: maxDelayMs * time.Millisecond, MaxTimers: 20, MaxTimerBytes: 50 << 10, MaxClientTimers: 10, MaxClientTimerBytes: 30 << 10,
		}
	}).Addrs()[0].String()
	return w
}

// theWorld is shared by all sequences of the process.
var theWorld = sync.OnceValue(startWorld)

func TestMain(m *testing.M) { testserver.Main(m) }

func TestSequences(t *testing.T) {
	w := theWorld()
	seed := *firstOne
	if seed == 0 {
		seed = rand.Uint64() >> 16
	}
	fmt.Fprintf(os.Stderr, "statefuzz: seeds from %d on\n", seed)
	played := 0
	for end := time.Now().Add(*duration); time.Now().Before(end) || played == 0; played++ {
		w.sequence(t, seed+uint64(played))
	}
	w.memoryIsBack(t)
	t.Logf("%d sequences", played)
}

// FuzzSequence plays the sequences that Go's fuzzer thinks of.
func FuzzSequence(f *testing.F) {
	for seed := range uint64(3) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { theWorld().sequence(t, seed) })
}

// sequence plays the sequence of a seed and checks the server.
func (w *world) sequence(t *testing.T, seed uint64) {
	t.Helper()
	defer func() { // also when a client has ended the test
		if t.Failed() {
			t.Logf("play it again with: go test ./internal/statefuzz -run TestSequences -seed %d", seed)
		}
	}()
	w.errors.seed.Store(seed)
	if w.played == 0 {
		w.prepare(t)
	}
	// The testing package has more goroutines in FuzzSequence than in TestSequences.
	if test, _, _ := strings.Cut(t.Name(), "/"); test != w.test {
		w.test, w.at.goroutines = test, 0
	}
	connections := 2 + newGenerator(seed, 0).IntN(4)
	var playing sync.WaitGroup
	for i := range connections {
		playing.Go(func() { play(w.addr, seed, uint64(i+1)) })
	}
	playing.Wait()
	w.check(t)
	if w.played++; w.played%10 == 0 {
		w.memoryIsBack(t)
	}
	if said := w.errors.said.Swap(0); said > 0 {
		t.Errorf("the server has logged %d errors", said)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// prepare makes what the checks use, while there is room for it.
func (w *world) prepare(t *testing.T) {
	w.storeAnswers(t)
	c := w.connect(t, "preparing")
	c.Publish(mqtttest.Message{Topic: "check/retained", QoS: 1, Retain: true, Payload: "retained"})
	c.Disconnect()
	w.idle(t)
	w.at = w.level()
}

func (w *world) connect(t *testing.T, id string, opts ...mqtttest.Option) *mqtttest.Client {
	t.Helper()
	return mqtttest.Connect(t, w.addr, append(opts, mqtttest.ClientID(id))...)
}

// check finds out whether the server does what it did before.
func (w *world) check(t *testing.T) {
	t.Helper()
	w.storeAnswers(t)
	w.routes(t)
	w.idle(t)
}

// storeAnswers asks for enough keys that each shard and nearly each stripe is asked.
func (w *world) storeAnswers(t *testing.T) {
	t.Helper()
	c := w.connect(t, "checker", mqtttest.ReceiveMaximum(1000))
	defer c.Disconnect()
	c.Subscribe("check/answers", 1)
	for i := range checkedKeys {
		key := fmt.Sprint("check/", i)
		w.request(c, "SET", key, key)
		w.request(c, "GET", key)
		w.request(c, "LOAD", key, "m")
		if i%window == window-1 {
			w.answers(t, c, window)
		}
	}
	w.answers(t, c, checkedKeys%window)
	w.request(c, "SCAN", "check/1*")
	if page := w.answer(t, c); !strings.Contains(page, "check/1\r\n") || !strings.Contains(page, "check/199\r\n") {
		t.Errorf("SCAN answers %.200q", page)
	}
}

func (w *world) request(c *mqtttest.Client, args ...string) {
	var payload strings.Builder
	fmt.Fprintf(&payload, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&payload, "$%d\r\n%s\r\n", len(a), a)
	}
	topic, correlation := "check/answers", "c"
	c.SendPublish(mqtttest.Message{
		Topic: protocol.Current.Topic, QoS: 1, Payload: payload.String(), ResponseTopic: &topic, CorrelationData: &correlation,
		User: [][2]string{{protocol.Current.TimeProperty, fmt.Sprintf("%015d:00000:check", time.Now().UnixMilli())}},
	})
}

// answer is the next answer of the store.
func (w *world) answer(t *testing.T, c *mqtttest.Client) string {
	t.Helper()
	for {
		switch p := c.Next(); {
		case p.Type == mqtt.PUBLISH && p.Publish.Topic == "check/answers":
			return p.Publish.Payload
		case p.Type != mqtt.PUBACK:
			t.Fatalf("got %v, want an answer", p)
		}
	}
}

// answers takes those to SET, GET and LOAD of n keys. That the store is full is an
// answer, too: to a SET that is no longer the key's first.
func (w *world) answers(t *testing.T, c *mqtttest.Client, n int) {
	t.Helper()
	for range n {
		set, get, load := w.answer(t, c), w.answer(t, c), w.answer(t, c)
		if set != "+OK\r\n" && !strings.HasPrefix(set, "-ERR") || !strings.HasPrefix(get, "$") || !strings.Contains(get, "check/") || load == "" {
			t.Fatalf("SET, GET and LOAD answer %q, %q and %.100q", set, get, load)
		}
	}
}

// routes sends messages of each QoS, and finds one that is retained.
func (w *world) routes(t *testing.T) {
	t.Helper()
	subscriber := w.connect(t, "subscriber")
	subscriber.Subscribe("check/+/message", 2)
	publisher := w.connect(t, "publisher")
	for qos := range byte(3) {
		payload := fmt.Sprint("at QoS ", qos)
		publisher.Publish(mqtttest.Message{Topic: "check/a/message", QoS: qos, Payload: payload})
		if m := subscriber.Receive(); m.Payload != payload {
			t.Errorf("got %v, want the message %s", m, payload)
		}
	}
	publisher.Publish(mqtttest.Message{Topic: "check/retained", QoS: 1, Retain: true, Payload: "retained"})
	publisher.Disconnect()
	subscriber.Subscribe("check/retained", 1)
	if m := subscriber.Receive(); m.Payload != "retained" || !m.Retain {
		t.Errorf("got %v, want what is retained", m)
	}
	subscriber.Disconnect()
}

// patience is how long the server may take to let go of what a sequence has left.
const patience = time.Minute

// idle ends the sequences' sessions, and waits until the server holds nothing for
// any client but the checker.
func (w *world) idle(t *testing.T) {
	t.Helper()
	for _, id := range clients {
		w.connect(t, id).Disconnect()
	}
	c := w.connect(t, "figures")
	var wrong string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if wrong = w.busy(c); wrong == "" {
			break
		}
	}
	c.Disconnect()
	if wrong != "" {
		t.Errorf("after %v there still is %s", patience, wrong)
	}
	if w.at.goroutines == 0 {
		w.at.goroutines = w.level().goroutines
	}
	if w.played%10 == 9 { // sockets that were closed early stay for half a second
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if now := w.level(); now.goroutines <= w.at.goroutines && now.sockets <= w.at.sockets && len(now.files) <= len(w.at.files)+fileSlack {
				return
			}
		}
		now := w.level()
		var stacks [1 << 20]byte
		t.Errorf("after %v there are %d goroutines, %d sockets and the files %q, at first there were %d, %d and %q\n%s", patience,
			now.goroutines, now.sockets, now.files, w.at.goroutines, w.at.sockets, w.at.files, stacks[:runtime.Stack(stacks[:], true)])
	}
}

// busy says what the server's figures have that an idle server has not.
func (w *world) busy(c *mqtttest.Client) string {
	c.Subscribe("$SYS/#", 0)
	figures := map[string]string{}
	for _, m := range c.Collect() {
		figures[strings.TrimPrefix(m.Topic, "$SYS/")] = m.Payload
	}
	for name, want := range map[string]int{
		"broker/clients/connected":     1,
		"broker/messages/queued":       0,
		"broker/messages/queued bytes": 0,
		"broker/subscriptions/count":   1,
		"store/watches":                0,
		"store/scans":                  0,
	} {
		if got, known := figures[name]; !known || got != strconv.Itoa(want) {
			return fmt.Sprintf("%q for %s", got, name)
		}
	}
	own := session.Subscription{Filter: "$SYS/#"}
	for kind, want := range map[memory.Kind]int64{
		memory.Unconnected: 0, memory.Input: 0, memory.Output: 0, memory.Queues: 0, memory.Replies: 0, memory.Watches: 0, memory.Remembered: 0,
		memory.Subscriptions: own.Memory(),
	} {
		if got := figures["broker/memory/"+kind.String()]; got != strconv.FormatInt(want, 10) {
			return fmt.Sprintf("%q for the memory charged as %s, not %d", got, kind, want)
		}
	}
	if got, want := figures["broker/principals/most sessions"], "1 127.0.0.1"; got != want {
		return fmt.Sprintf("%q for the principal with most sessions", got)
	}
	return ""
}

func (w *world) level() (now baseline) {
	now.goroutines = runtime.NumGoroutine()
	entries, _ := os.ReadDir("/proc/self/fd") // none where there is no /proc
	for _, e := range entries {
		if name, err := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(name, "socket:") {
			now.sockets++
		} else if err == nil {
			now.files = append(now.files, name)
		}
	}
	return now
}

// fileSlack is how many files may be open that were not at first: the store opens tables
// and segments as it grows, and readers that take turns have a pipe for each processor.
var fileSlack = 32 + 2*runtime.GOMAXPROCS(0)

// Pebble's memtables and cache are on the heap and come and go by themselves.
const (
	heapSlack   = 96 << 20
	objectSlack = 150_000
)

// memoryIsBack compares the heap with that of the first time.
func (w *world) memoryIsBack(t *testing.T) {
	t.Helper()
	debug.FreeOSMemory()
	runtime.GC() // what was in pools went with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if w.at.bytes == 0 {
		w.at.bytes, w.at.objects = m.HeapAlloc, m.HeapObjects
		return
	}
	if m.HeapAlloc > w.at.bytes+heapSlack || m.HeapObjects > w.at.objects+objectSlack {
		t.Errorf("the heap has %d bytes in %d objects, at first %d in %d", m.HeapAlloc, m.HeapObjects, w.at.bytes, w.at.objects)
	}
}
