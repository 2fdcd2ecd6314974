package main

import (
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

func TestPercentilesAreRightToThreePercent(t *testing.T) {
	t.Parallel()
	var h histogram
	for i := range 100_000 {
		h.add(time.Duration(i+1)*time.Microsecond, 1)
	}
	for _, c := range []struct {
		p    float64
		want time.Duration
	}{{0.5, 50 * time.Millisecond}, {0.99, 99 * time.Millisecond}, {0.999, 99900 * time.Microsecond}} {
		got := h.percentile(c.p)
		if got < c.want || got > c.want+c.want*4/100 {
			t.Errorf("percentile %v = %v, want %v and at most 4 %% more", c.p, got, c.want)
		}
	}
}

func TestBucketsHoldWhatTheyCount(t *testing.T) {
	t.Parallel()
	for d := time.Duration(1); d < time.Hour; d += d/7 + 1 {
		b := bucketOf(d)
		if upper(b) < d || b > 0 && upper(b-1) >= d {
			t.Fatalf("%v is in bucket %d, which ends at %v", d, b, upper(b))
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{7}, 7}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestARequestIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	packet := wire.AppendRequest(nil, 7, "my/answers", "1:2:n", "SET", "key", strings.Repeat("v", 4096))
	header, body, n := wire.Split(packet)
	if n != len(packet) {
		t.Fatalf("Split takes %d of %d bytes", n, len(packet))
	}
	if _, _, n := wire.Split(packet[:n-1]); n != 0 {
		t.Error("Split takes a packet that is cut short")
	}
	var m wire.Message
	m.Parse(header, body)
	topic, correlation := m.Request()
	verb, value := wire.Command(m.Payload)
	if m.ID != 7 || string(m.Topic) != wire.InvokeTopic || string(topic) != "my/answers" || len(correlation) != 16 ||
		string(verb) != "SET" || string(wire.Key(m.Payload)) != "key" || len(value) != 4096 {
		t.Errorf("got id %d topic %q response topic %q verb %q key %q", m.ID, m.Topic, topic, verb, wire.Key(m.Payload))
	}
}

func TestEveryKeyIsInAWindow(t *testing.T) {
	t.Parallel()
	s := script{keys: keyNames(20), window: 16}
	seen := map[string]bool{}
	for _, w := range s.windows() {
		if len(w) != 16 {
			t.Errorf("a window of %d", len(w))
		}
		for _, k := range w {
			seen[k] = true
		}
	}
	if len(seen) != 20 {
		t.Errorf("%d of 20 keys are asked for", len(seen))
	}
}

func TestAGoalIsMetMissedOrNotMeasured(t *testing.T) {
	t.Parallel()
	r := &Report{}
	work := "SET " + shape{50, 1, 64}.String()
	r.add(work, holdfast, Figures{PerSecond: 100}, nil)
	r.add(work, redis, Figures{PerSecond: 200}, nil)
	r.measure(idleWork, holdfast, "memory each", 4.5, "KiB")
	r.add("GET "+shape{50, 1, 64}.String(), redis, Figures{}, errors.New("gone"))
	results := map[string]string{}
	for _, g := range r.goals() {
		results[g.Work+", "+g.Goal] = map[bool]string{true: "?", false: "missed"}[g.Met == nil]
		if g.Met != nil && *g.Met {
			results[g.Work+", "+g.Goal] = "met"
		}
	}
	for goal, want := range map[string]string{
		work + ", ≥ 1 × " + redis:                              "missed",
		idleWork + ": memory each, ≤ 5 KiB, one goroutine":     "met",
		"GET 50 × 1, 64 B, ≥ 0.9 × " + redis:                   "?",
		"GET 50 × 1, 64 B, CPU ≤ 1.25 × " + bareLoop:           "?",
		"NOTIFY to 10000 watchers, last one ≤ 1.3 × bare loop": "?",
	} {
		if got := results[goal]; got != want {
			t.Errorf("%s: %q, want %q", goal, got, want)
		}
	}
}

func TestARunFindsTheRepository(t *testing.T) {
	t.Parallel()
	dir, err := findRepository()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, holdfastPackage)); err != nil {
		t.Errorf("%s is taken for the repository: %v", dir, err)
	}
}

func TestTheChartIsWellFormed(t *testing.T) {
	t.Parallel()
	r := &Report{Machine: "a <small> one & old"}
	r.add("GET 50 × 1, 64 B", holdfast, Figures{PerSecond: 100e3, CPUPerMillion: 7}, nil)
	r.add("GET 50 × 1, 64 B", redis, Figures{PerSecond: 119e3, CPUPerMillion: 6}, nil)
	d := xml.NewDecoder(strings.NewReader(string(r.chart())))
	for {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A profile's stacks are charged to the room of the innermost function that
// belongs to one; what the benchmark's own client does isn't a request's.
func TestAProfileIsChargedToRooms(t *testing.T) {
	t.Parallel()
	traces := []byte(`File: server.test
Type: cpu
-----------+-------------------------------------------------------
 800000000ns   internal/runtime/syscall/linux.Syscall6
             syscall.Write (inline)
             github.com/holdfast-mqtt/holdfast/internal/transport.writeOnce
             github.com/holdfast-mqtt/holdfast/internal/broker.(*Conn).handleBuffered
-----------+-------------------------------------------------------
 300000000ns   runtime.memmove
             github.com/holdfast-mqtt/holdfast/internal/mqtt.AppendDelivery
             github.com/holdfast-mqtt/holdfast/internal/broker.(*Conn).deliver
-----------+-------------------------------------------------------
 600000000ns   syscall.write
             github.com/holdfast-mqtt/holdfast/internal/server.(*wire).send
-----------+-------------------------------------------------------
 100000000ns   runtime.findRunnable
             runtime.mcall
`)
	s := spent{"GET", map[string]float64{}}
	if err := s.add(traces, 1_000_000); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"write system call": 800, "MQTT: encode": 300, elsewhere.name: 100}
	if !maps.Equal(s.rooms, want) {
		t.Errorf("got %v, want %v", s.rooms, want)
	}
	if err := s.add([]byte("no samples"), 1); err == nil {
		t.Error("a profile without stacks is no error")
	}
}

// A sample belongs to the innermost function that says what it is for.
func TestRoomOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stack []string
		want  string
	}{
		{[]string{"syscall.RawSyscall", "github.com/holdfast-mqtt/holdfast/internal/transport.callNow", "github.com/holdfast-mqtt/holdfast/internal/transport.writeNow", "github.com/holdfast-mqtt/holdfast/internal/transport.writeOnce", "github.com/holdfast-mqtt/holdfast/internal/broker.(*Conn).read"}, "write system call"},
		{[]string{"syscall.Syscall", "github.com/cockroachdb/pebble/v2/vfs.(*linuxFile).SyncData", "github.com/holdfast-mqtt/holdfast/internal/journal.(*writeLog).sync"}, "journal: the log and its fsync"},
		{[]string{"runtime.memmove", "github.com/cockroachdb/pebble/v2.(*Batch).Set", "github.com/holdfast-mqtt/holdfast/internal/engine.(*turn).commit"}, "journal: rows, and Pebble"},
		{[]string{"runtime.mapaccess", "github.com/holdfast-mqtt/holdfast/internal/engine.(*session).write", "github.com/holdfast-mqtt/holdfast/internal/broker.(*Conn).read"}, "store: service and rules"},
		{[]string{"runtime.futex", "runtime.schedule"}, elsewhere.name},
	} {
		if got, ok := roomOf(c.stack); got != c.want || !ok {
			t.Errorf("%s: %q, want %q", c.stack[0], got, c.want)
		}
	}
	if _, ok := roomOf([]string{"runtime.memmove", "github.com/holdfast-mqtt/holdfast/internal/server.(*wire).send"}); ok {
		t.Error("the load generator's time is taken for the server's")
	}
}
