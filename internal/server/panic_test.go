package server

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/internal/failstop"
	"holdfast/internal/mqtt"
	"holdfast/internal/mqtttest"
	"holdfast/internal/protocol"
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
	"a reader without locks":                  func(cfg *Config) { cfg.Auth = faulty{"handlePublish"} },
	"a shard of keys":                         func(cfg *Config) { cfg.Clock = faultyClock{time.Now(), "(*session).write"} },
	"a stripe of keys, and a shard":           func(cfg *Config) { cfg.Clock = faultyClock{time.Now(), "(*session).store"} },
	"the turn of completions, and the acks":   func(cfg *Config) { cfg.Auth = faulty{"emitDurable"} },
	"an fsync of the log":                     func(cfg *Config) { cfg.FS = faultyFS{vfs.Default, "(*writeLog).sync"} },
	"a look at the disk's space":              func(cfg *Config) { cfg.FS = faultyFS{vfs.Default, "CheckSpace"} },
	"no lock, while a SCAN reads the disk":    func(cfg *Config) { cfg.Keys = faultyKeys{"(*page).wanted"} },
	"no lock, on the clean-up of messages":    func(cfg *Config) { cfg.Clock = faultyClock{time.Now(), "ForgetDue"} },
	"no lock, while a connection comes":       func(cfg *Config) { cfg.Auth = faulty{"(*Conn).judge"} },
	"no lock, while a subscription is judged": func(cfg *Config) { cfg.Auth = faulty{"subscribeOne"} },
}

// faulty is an Authorizer with a defect where the function is running.
type faulty struct{ function string }

func (f faulty) Connect(*mqtt.Connect, net.Addr) (any, mqtt.ReasonCode, string) {
	defectIn(f.function)
	return nil, mqtt.Success, ""
}

func (f faulty) MaySubscribe(any, string) bool {
	defectIn(f.function)
	return true
}

func (f faulty) MayPublish(any, []byte) bool {
	defectIn(f.function)
	return true
}

type faultyClock struct {
	start    time.Time
	function string
}

func (c faultyClock) WallMs() int64 {
	defectIn(c.function)
	return time.Now().UnixMilli()
}

func (c faultyClock) SinceStart() time.Duration { return time.Since(c.start) }

type faultyKeys struct{ function string }

func (k faultyKeys) MayRead(any, []byte) bool {
	defectIn(k.function)
	return true
}

func (k faultyKeys) MayWrite(any, []byte) bool { return true }

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
		t.Skip("only for the tests of defects")
	}
	cfg := settings(dir)
	cfg.WebSocket = []string{"127.0.0.1:0"}
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
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test has gone
}

func settings(dir string) Config {
	cfg := Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, dir
	return cfg
}

// defective is a server in a process of its own.
type defective struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	addr   string
	stderr strings.Builder // once the process has ended
}

func startDefective(t *testing.T, dir, defect string) *defective {
	t.Helper()
	d := &defective{cmd: exec.Command(os.Args[0], "-test.run=^TestBeDefective$", "-test.timeout=2m")}
	d.cmd.Env = append(os.Environ(), defectiveDir+"="+dir, defectiveDefect+"="+defect)
	d.cmd.Stderr = &d.stderr
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server did not start: %v\n%s", err, &d.stderr)
	}
	d.addr = strings.TrimSpace(strings.TrimPrefix(line, "listening"))
	return d
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
	return &working
}

// ask sends a command to the store and awaits its answer. What comes besides is
// dropped.
func ask(c *mqtttest.Client, name string, args ...string) string {
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
			return p.Publish.Payload
		}
	}
}

// kept checks that a server on the directory has all that was promised.
func (p *promised) kept(t *testing.T, dir string) {
	t.Helper()
	s, err := Start(settings(dir))
	if err != nil {
		t.Fatalf("it does not start again: %v", err)
	}
	defer s.Shutdown(t.Context())
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

// lines are how the end of the process is told: by the server in its log, and on
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
	hung := time.AfterFunc(2*mqtttest.Deadline, func() { _ = d.cmd.Process.Kill() })
	err := d.cmd.Wait()
	if !hung.Stop() {
		t.Errorf("the process did not end; if nothing that the clients of this test do comes by the defect, add to promised.work what does")
	}
	working.Wait()
	if status := d.cmd.ProcessState.ExitCode(); status != failstop.Status {
		t.Errorf("it ended with %v, want the status %d", err, failstop.Status)
	}
	said := d.stderr.String()
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
