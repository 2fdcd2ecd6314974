package server

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// The tests of this file run a server in a process of its own, which has a defect
// that the test plants: this test binary, told by its environment to be a server.
const (
	defectiveDir    = "HOLDFAST_TEST_DEFECTIVE_DIR"
	defectiveDefect = "HOLDFAST_TEST_DEFECT"
)

// armed is set when the defect is to show.
var armed atomic.Bool

// defectIn panics if the defect is to show and the function named is running.
func defectIn(function string) {
	if armed.Load() && strings.Contains(string(debug.Stack()), function+"(") && armed.CompareAndSwap(true, false) {
		panic("a planted defect")
	}
}

// defects are planted where the server calls what its owner gives it: name, and how.
var defects = map[string]func(cfg *Config){
	"a reader without locks":                  func(cfg *Config) { cfg.May = faulty{function: "handlePublish"} },
	"a shard of keys":                         func(cfg *Config) { cfg.Clock = faultyClock{time.Now(), "(*session).write"} },
	"a stripe of keys, and a shard":           func(cfg *Config) { cfg.Clock = faultyClock{time.Now(), "(*session).store"} },
	"the turn of completions, and the acks":   func(cfg *Config) { cfg.May = faulty{function: "(*Ring).Answered"} },
	"an fsync of the log":                     func(cfg *Config) { cfg.FS = faultyFS{vfs.Default, "wal.(*Log).Sync"} },
	"a look at the disk's space":              func(cfg *Config) { cfg.FS = faultyFS{vfs.Default, "(*Space).Check"} },
	"no lock, while a SCAN reads the disk":    func(cfg *Config) { cfg.May = faulty{function: "(*Page).Visit"} },
	"no lock, on the clean-up of messages":    func(cfg *Config) { cfg.Clock = faultyClock{time.Now(), "ForgetDue"} },
	"no lock, while a connection comes":       func(cfg *Config) { cfg.Auth = faulty{function: "(*Conn).judge"} },
	"no lock, while a subscription is judged": func(cfg *Config) { cfg.May = faulty{function: "subscribeOne"} },
}

// faulty is an Authenticator, and Permissions, with a defect where the function is running.
type faulty struct {
	access.AllowAll
	function string
}

func (f faulty) Connect(*mqtt.Connect, string, *access.Origin, <-chan struct{}) access.Verdict {
	defectIn(f.function)
	return access.Verdict{}
}

func (f faulty) Reauthenticate(*access.Identity, *mqtt.Auth, *access.Origin, <-chan struct{}) access.Verdict {
	return access.Verdict{}
}

func (f faulty) Holds(*access.Identity) bool { return true }

func (f faulty) MayRead(*access.Identity, []byte) bool {
	defectIn(f.function)
	return true
}

func (f faulty) MaySubscribe(*access.Identity, []byte) bool {
	defectIn(f.function)
	return true
}

func (f faulty) MayPublish(*access.Identity, []byte) bool {
	defectIn(f.function)
	return true
}

// limited are Permissions to do everything, with quotas that no test reaches.
type limited struct{ access.AllowAll }

var roomy = access.Grants{Quota: access.Quota{
	Connections: 1 << 40, Sessions: 1 << 40, Subscriptions: 1 << 40, Keys: 1 << 40, KeyBytes: 1 << 40, Retained: 1 << 40, RetainedBytes: 1 << 40,
	Publishes: 1 << 40, PublishBytes: 1 << 40, TimestampSkew: time.Minute,
}}

func (limited) Grants(*access.Identity) *access.Grants { return &roomy }

type faultyClock struct {
	start    time.Time
	function string
}

func (c faultyClock) WallMs() int64 {
	defectIn(c.function)
	return time.Now().UnixMilli()
}

func (c faultyClock) SinceStart() time.Duration { return time.Since(c.start) }

type faultyFS struct {
	vfs.FS
	function string
}

func (f faultyFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	defectIn(f.function)
	return f.FS.GetDiskUsage(path)
}

func (f faultyFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, category, opts...)
	return faultyFile{file, f.function}, err
}

type faultyFile struct {
	vfs.File
	function string
}

func (f faultyFile) SyncData() error {
	defectIn(f.function)
	return f.File.SyncData()
}

// TestBeDefective is the server in a process of its own.
func TestBeDefective(t *testing.T) {
	dir, defect := os.Getenv(defectiveDir), os.Getenv(defectiveDefect)
	if dir == "" {
		t.Skip("this is no test by itself: those of planted defects run it as a process of their own")
	}
	cfg := Default()
	authority := certstest.New(t)
	cfg.Listen, cfg.WebSocket, cfg.DataDir = []string{"127.0.0.1:0", "mqtts://127.0.0.1:0"}, []string{"127.0.0.1:0"}, dir
	cfg.TLS = authority.Server("server")
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if plant := defects[defect]; plant != nil {
		plant(&cfg)
	}
	provoke(&cfg, defect)
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("listening", s.Addrs()[0])
	if line, _ := bufio.NewReader(os.Stdin).ReadString('\n'); line != "" {
		armed.Store(true)
		armLock(defect)
		if c, err := net.Dial("tcp", s.WebSocketAddrs()[0].String()); err == nil {
			defer c.Close()
		}
		go func() { _ = s.Reload() }()
		go func() {
			c, err := tls.Dial("tcp", s.Addrs()[1].String(), authority.Trust())
			if err != nil {
				return
			}
			client := mqtttest.NewClient(untilEnd{t}, c)
			client.SendConnect()
			client.Expect(mqtt.CONNACK)
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test has gone
}

// defective is a server in a process of its own.
type defective struct {
	*process.Process
	in   io.WriteCloser
	addr string
}

var listening = regexp.MustCompile(`(?m)^listening (\S+)`)

func startDefective(t *testing.T, dir, defect string) *defective {
	t.Helper()
	p, in, err := process.StartTest("TestBeDefective", listening, defectiveDir+"="+dir, defectiveDefect+"="+defect, "TMPDIR="+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	return &defective{p, in, listening.FindStringSubmatch(p.Output())[1]}
}

// untilEnd is a test whose clients end silently when the server does.
type untilEnd struct{ testing.TB }

func (untilEnd) Fatalf(string, ...any) { runtime.Goexit() }

// promised is what the server has acknowledged.
type promised struct {
	some chan struct{} // closed when there is something of each kind

	mu       sync.Mutex
	keys     []string // with their name as value
	retained []string // topics
	queued   []string // payloads for the session that is away
}

func (p *promised) note(list *[]string, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.least()
	*list = append(*list, what)
	if before < enoughPromised && p.least() == enoughPromised {
		close(p.some)
	}
}

const enoughPromised = 5

func (p *promised) least() int { return min(len(p.keys), len(p.retained), len(p.queued)) }

// work keeps the server busy with everything that takes a lock, until it ends.
func (p *promised) work(t *testing.T, addr string) *sync.WaitGroup {
	var working sync.WaitGroup
	each := func(name string, step func(c *mqtttest.Client, i int)) {
		working.Go(func() {
			tb := untilEnd{t}
			c := mqtttest.Connect(tb, addr, mqtttest.ClientID(name))
			c.Subscribe("answers/"+name, 1)
			for i := 0; ; i++ {
				step(c, i)
			}
		})
	}
	each("setter", func(c *mqtttest.Client, i int) {
		key := fmt.Sprintf("set/%d%s", i, strings.Repeat("k", i*37%5000)) // of all sizes
		ask(c, "setter", "SET", key, key)
		p.note(&p.keys, key)
	})
	each("storer", func(c *mqtttest.Client, i int) {
		key := fmt.Sprintf("stored/%d", i)
		ask(c, "storer", "LOAD", key, "message")
		ask(c, "storer", "STORE", key, key, "message", "-")
		p.note(&p.keys, key)
	})
	each("watcher", func(c *mqtttest.Client, i int) {
		key := fmt.Sprintf("watched/%d", i)
		ask(c, "watcher", "KEYNOTIFY", key)
		ask(c, "watcher", "SET", key, strings.Repeat("v", 100<<10), "PX", "1") // its watchers share it
		ask(c, "watcher", "SCAN", "stored/*")
	})
	each("retainer", func(c *mqtttest.Client, i int) {
		topic := fmt.Sprintf("retained/%d", i)
		c.Publish(mqtttest.Message{Topic: topic, QoS: 1, Retain: true, Payload: topic})
		p.note(&p.retained, topic)
	})
	each("publisher", func(c *mqtttest.Client, i int) {
		payload := fmt.Sprint(i)
		c.Publish(mqtttest.Message{Topic: "queue", QoS: 2, Payload: payload})
		p.note(&p.queued, payload)
		c.Publish(mqtttest.Message{Topic: "shared", QoS: 1, Payload: payload})
	})
	each("delayer", func(c *mqtttest.Client, i int) {
		later := func(ms, id string) {
			c.Publish(mqtttest.Message{Topic: "shared", QoS: 1, User: [][2]string{{"holdfast-deliver-after", ms}, {"holdfast-timer-id", id}}})
		}
		later("1", fmt.Sprint(i))
		later("60000", "far")
		ask(c, "delayer", "CANCEL", "far")
	})
	working.Go(func() { // clients that come and go
		tb := untilEnd{t}
		for i := 0; ; i++ {
			c := mqtttest.Connect(tb, addr, mqtttest.ClientID("guest"), mqtttest.SessionExpiry(uint32(i%2)), mqtttest.KeepAlive(0),
				mqtttest.Will(mqtttest.Message{Topic: "shared", Payload: "gone", QoS: 1}, 0))
			c.SubscribeWith(0, mqtttest.Sub{Filter: "$share/group/shared", QoS: 1}, mqtttest.Sub{Filter: "retained/#", QoS: 1})
			c.Ping()
			c.Drop()
		}
	})
	working.Go(func() { // a client that does not know its password
		tb := untilEnd{t}
		for {
			c := mqtttest.Dial(tb, addr)
			c.SendConnect(mqtttest.Credentials("mallory", "guess"))
			c.Expect(mqtt.CONNACK)
			c.Drop()
		}
	})
	return &working
}

// ask sends a command to the store and awaits its answer. What comes besides is
// dropped.
func ask(c *mqtttest.Client, name string, args ...string) string {
	return answer(c, name, args...).Payload
}

// answer is ask for the whole message.
func answer(c *mqtttest.Client, name string, args ...string) mqtttest.Message {
	var payload strings.Builder
	fmt.Fprintf(&payload, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&payload, "$%d\r\n%s\r\n", len(a), a)
	}
	topic, correlation := "answers/"+name, "c"
	c.SendPublish(mqtttest.Message{
		Topic: protocol.Current.Topic, QoS: 1, Payload: payload.String(), ResponseTopic: &topic, CorrelationData: &correlation,
		User: [][2]string{{protocol.Current.TimeProperty, fmt.Sprintf("%015d:00000:test", time.Now().UnixMilli())}},
	})
	for {
		if p := c.Next(); p.Type == mqtt.PUBLISH && p.Publish.Topic == topic {
			return *p.Publish
		}
	}
}

// kept checks that a server on the directory has all that was promised.
func (p *promised) kept(t *testing.T, dir string) {
	t.Helper()
	s := startIn(t, dir)
	c := mqtttest.Connect(t, s.Addrs()[0].String(), mqtttest.ClientID("checker"))
	c.Subscribe("answers/checker", 1)
	for _, key := range p.keys {
		if got, want := ask(c, "checker", "GET", key), fmt.Sprintf("$%d\r\n%s\r\n", len(key), key); got != want {
			t.Errorf("GET %.40s: got %.40q", key, got)
		}
	}
	got := map[string]bool{}
	c.Subscribe("retained/#", 1)
	for _, topic := range p.retained {
		for !got[topic] {
			got[c.Receive().Topic] = true
		}
	}
	away := mqtttest.Connect(t, s.Addrs()[0].String(), mqtttest.Persistent("away"))
	got = map[string]bool{}
	for _, payload := range p.queued {
		for !got[payload] {
			got[away.Receive().Payload] = true
		}
	}
}

// lines report the end of the process: by the server in its log, and on
// goroutines that are not its own by Go alone.
var (
	logLine   = regexp.MustCompile(`(?m)^time=\S+ level=ERROR msg="giving up: the server has a defect.*panic=.*defect`)
	stackLine = regexp.MustCompile(`(?m)^panic: .*defect.*\n\ngoroutine `)
)

// aPlantedDefect is a server that meets a defect while it works: it ends with one
// line, a stack and its status, and has everything when it is started again.
func aPlantedDefect(t *testing.T, defect string) {
	dir := t.TempDir()
	d := startDefective(t, dir, defect)
	for _, id := range []string{"away", "also away"} { // a message of both is stored once
		away := mqtttest.Connect(t, d.addr, mqtttest.Persistent(id))
		away.Subscribe("queue", 2)
		away.Disconnect()
	}
	member := mqtttest.Connect(t, d.addr, mqtttest.Persistent("member"))
	member.Subscribe("$share/group/shared", 1)
	member.Drop()
	p := promised{some: make(chan struct{})}
	working := p.work(t, d.addr)
	select {
	case <-p.some:
	case <-time.After(mqtttest.Deadline):
		t.Fatal("the server acknowledges nothing")
	}
	if _, err := io.WriteString(d.in, "now\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.Ended():
	case <-time.After(2 * mqtttest.Deadline):
		d.Kill()
		t.Errorf("the process did not end; if nothing that the clients of this test do comes by the defect, add to promised.work what does")
	}
	working.Wait()
	if d.State().ExitCode() != failstop.Status {
		t.Errorf("it ended with %v, want the status %d", d.State(), failstop.Status)
	}
	said := d.Output()
	if len(logLine.FindAllString(said, -1)) > 1 || len(stackLine.FindAllString(said, -1)) != 1 {
		t.Errorf("want one line and a stack, got:\n%s", said)
	}
	p.kept(t, dir)
	if t.Failed() {
		t.Logf("%d keys, %d retained, %d queued; it said:\n%s", len(p.keys), len(p.retained), len(p.queued), said)
	}
}

func TestADefectEndsTheProcessAndLosesNothing(t *testing.T) {
	t.Parallel()
	for defect := range defects {
		t.Run(defect, func(t *testing.T) {
			t.Parallel()
			aPlantedDefect(t, defect)
		})
	}
}
