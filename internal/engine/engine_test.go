package engine

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/ahead"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

func TestCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	for _, text := range []string{
		"GET k", "SET k v", "GET k", "SET k w NX", "SET k v NEX", "VDEL k x", "DEL k", "DEL k", "VDEL k x",
		"STOP k", "SET f v FT=5", "SET f w", "SET f w FT=4", "DEL f FT=6",
	} {
		a.wait(text)
	}
	w.expect(
		"a: GET k -> nil",
		"a: SET k v -> OK",
		"a: GET k -> v",
		"a: SET k w NX -> not applied",
		"a: SET k v NEX -> OK",
		"a: VDEL k x -> not applied",
		"a: DEL k -> 1",
		"a: DEL k -> 0",
		"a: VDEL k x -> 0",
		"a: STOP k -> 0",
		"a: SET f v FT=5 -> OK",
		"a: SET f w -> "+statestore.TokenRequired.Error(),
		"a: SET f w FT=4 -> "+statestore.TokenTooLow.Error(),
		"a: DEL f FT=6 -> 1",
	)
	done := &answer{c: a, label: "LOAD k", done: make(chan struct{})}
	a.run(&statestore.Command{Verb: 99, Key: []byte("k")}, done)
	w.expect("a: LOAD k -> unknown command")
}

func TestGetOfADurableKeyRepliesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	a.wait("SET k v")
	w.settle()
	w.disk.Hold() // others' writes are no reason to wait
	a.do("SET other v")
	b := w.client("b")
	for _, text := range []string{"GET k", "GET missing"} {
		if got := b.do(text); got.waited || !got.replied() {
			t.Errorf("%s: waited %v, replied %v; want the reply inside Do", text, got.waited, got.replied())
		}
	}
}

// Every reply waits for the batch of what it looked at (protocol, section 6,
// Order), be it a value, a refusal, or that there is nothing.
func TestRepliesWaitForWhatTheyLookedAt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, before, change string
		then, want           []string
	}{
		{"a value", "", "SET k v", []string{"GET k"}, []string{"v"}},
		{"a failed NX", "", "SET k v", []string{"SET k w NX"}, []string{"not applied"}},
		{"a failed NEX", "", "SET k v", []string{"SET k w NEX"}, []string{"not applied"}},
		{"another value", "", "SET k v", []string{"VDEL k w"}, []string{"not applied"}},
		{"a fencing error", "", "SET k v FT=5", []string{"SET k w", "DEL k"}, []string{statestore.TokenRequired.Error(), statestore.TokenRequired.Error()}},
		{"nothing, any more", "SET k v", "DEL k", []string{"GET k", "DEL k", "VDEL k v"}, []string{"nil", "0", "0"}},
		{"what replaced a deletion", "SET k v", "DEL k", []string{"SET k w NX", "GET k"}, []string{"OK", "w"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{})
			a, b := w.client("a"), w.client("b")
			if c.before != "" {
				a.wait(c.before)
				w.settle()
			}
			w.disk.Hold()
			change := a.do(c.change)
			var later []*answer
			for _, text := range c.then {
				later = append(later, b.do(text))
			}
			w.disk.AwaitSync() // the journal has done what it can without the disk
			for _, got := range append(later, change) {
				if got.replied() {
					t.Errorf("%s was answered before the disk had it", got.label)
				}
			}
			w.disk.Release(nil)
			<-change.done
			for i, got := range later {
				<-got.done
				if show(&got.reply) != c.want[i] {
					t.Errorf("%s -> %s, want %s", got.label, show(&got.reply), c.want[i])
				}
			}
		})
	}
}

// A SCAN reads what the disk has, so it waits for the disk before it reads.
func TestAPageWaitsForWhatItShows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, change, want string }{
		"a page":        {"DEL k", "SET k v", "[k] more=false"},
		"an empty page": {"SET k v", "DEL k", "[] more=false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{})
			a, b := w.client("a"), w.client("b")
			a.wait(c.before)
			w.settle()
			w.disk.Hold()
			a.do(c.change)
			w.disk.AwaitSync()
			page := make(chan *answer, 1)
			go func() { page <- b.do("SCAN *") }()
			select {
			case <-page:
				t.Error("SCAN came back before the disk had what it would show")
			default:
			}
			w.disk.Release(nil)
			got := <-page
			<-got.done
			if show(&got.reply) != c.want {
				t.Errorf("SCAN -> %s, want %s", show(&got.reply), c.want)
			}
		})
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{NodeID: "here"})
	a := w.client("a")
	set := a.wait("SET k v").Version
	if want := (hlc.Timestamp{Wall: startMs, Counter: 1, Node: "here"}); set != want {
		t.Errorf("version %v, want %v", set, want)
	}
	if got := a.wait("GET k").Version; got != set {
		t.Errorf("GET's version %v, want %v", got, set)
	}
	if got := a.wait("SET k x NX").Version; got != set {
		t.Errorf("failed NX's version %v, want %v", got, set)
	}

	// The deletion moves the last version, and so does a step back of the clock
	// not move it back, nor does a restart or a crash.
	if got := a.wait("DEL k").Version; got != set {
		t.Errorf("DEL's version %v, want %v", got, set)
	}
	last := w.e.Stats().Last
	if last.Compare(set) <= 0 {
		t.Errorf("the deletion's version %v is not after %v", last, set)
	}
	w.clock.wallMs.Add(-10_000)
	for name, event := range map[string]func(){"restart": w.restart, "crash": w.crash} {
		event()
		if got := w.client("a").wait("SET k v").Version; got.Compare(last) <= 0 {
			t.Errorf("after a %s: version %v is not after %v", name, got, last)
		} else {
			last = got
		}
	}
}

func TestRestartAndCrashKeepWhatWasReplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	long := strings.Repeat("x", 100_000)
	for _, text := range []string{"SET plain v", "SET gone v", "SET fenced v FT=7", "SET lease v PX=5000", "SET long " + long, "DEL gone"} {
		a.wait(text)
	}
	version := a.wait("GET fenced").Version
	before := w.e.Stats()
	w.disk.Hold()
	a.do("SET plain lost") // not replied
	for _, name := range []string{"crash", "restart"} {
		map[string]func(){"crash": w.crash, "restart": w.restart}[name]()
		a = w.client("a")
		for key, want := range map[string]string{"plain": "v", "gone": "nil", "fenced": "v", "lease": "v", "long": long} {
			if got := show(a.wait("GET " + key)); got != want {
				t.Errorf("after a %s: %s = %s", name, key, got)
			}
		}
		if got := a.wait("GET fenced").Version; got != version {
			t.Errorf("after a %s: version %v, want %v", name, got, version)
		}
		if got := show(a.wait("SET fenced w FT=6")); got != statestore.TokenTooLow.Error() {
			t.Errorf("after a %s, a lower token: %s", name, got)
		}
		after := w.e.Stats()
		if after.Keys != before.Keys || after.Bytes != before.Bytes || after.Last.Compare(before.Last) < 0 {
			t.Errorf("after a %s: %+v, before it %+v", name, after, before)
		}
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	quota := statestore.QuotaExceeded.Error()
	for _, c := range []struct {
		name string
		o    Options
		do   [][2]string
	}{
		{"keys", Options{MaxKeys: 2}, [][2]string{
			{"SET a 1", "OK"}, {"SET b 1", "OK"}, {"SET c 1", quota},
			{"SET a 2", "OK"}, {"DEL a", "1"}, {"SET c 1", "OK"}, {"GET c", "1"}, {"SET a 1", quota},
		}},
		{"bytes", Options{MaxBytes: 10}, [][2]string{
			{"SET a 123456789", "OK"}, {"SET b 1", quota}, {"SET a 1234567890", quota}, {"SET a 123", "OK"},
			{"SET b 12345", "OK"}, {"SET c 1", quota}, {"VDEL b 12345", "1"}, {"SET c 1", "OK"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.o)
			a := w.client("a")
			for _, step := range c.do {
				if got := show(a.wait(step[0])); got != step[1] {
					t.Errorf("%s -> %s, want %s", step[0], got, step[1])
				}
			}
		})
	}
}

// With the disk nearly full nothing is written but what makes room, and, while three
// quarters of the reserve are left, what replaces a value by one that isn't longer.
func TestLowDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	a.wait("SET k v")
	a.wait("SET gone v")
	a.wait("SET lease v PX=100")
	a.wait("STORE state v m1 - KEEP=50")
	a.wait("STORE state v2 m2 " + a.wait("GET state").Version.String())
	space := func(free uint64) {
		w.disk.SetSpace(free, 100<<30)
		w.j.CheckSpace()
	}
	try := func(steps ...[2]string) {
		t.Helper()
		for _, step := range steps {
			if got := show(a.wait(step[0])); got != step[1] {
				t.Errorf("%s -> %s, want %s", step[0], got, step[1])
			}
		}
	}
	quota := statestore.QuotaExceeded.Error()

	space(255 << 20)
	try([2]string{"SET k u", "OK"}, [2]string{"SET k v", "OK"}, // nothing new: so a lease can be renewed
		[2]string{"SET k longer", quota}, [2]string{"SET new v", quota}, [2]string{"GET k", "v"})
	try([2]string{"STORE k v m " + a.wait("GET k").Version.String(), quota}) // what is remembered is new
	space(191 << 20)                                                         // a quarter of the reserve is in use
	try([2]string{"SET k w", quota}, [2]string{"SET new v", quota}, [2]string{"GET k", "v"},
		[2]string{"DEL gone", "1"}, [2]string{"SCAN *", "[k lease state] more=false"},
		[2]string{"STORE other v m -", quota}, [2]string{"LOAD state m2", "1 v nil"},
		[2]string{"STORE state v2 m2 -", "0"}, [2]string{"DONE state m2", "1"})
	w.clock.advance(100)
	w.e.ExpireDue()
	w.e.ForgetDue()
	w.wantRemembered(1)
	try([2]string{"GET lease", "nil"}, [2]string{"SCAN *", "[k state] more=false"}, [2]string{"LOAD state m1", "0 v2 nil"})

	space(257 << 20) // not enough to be sure of it
	try([2]string{"SET k longer", quota}, [2]string{"SET k w", "OK"})
	space(1 << 30)
	try([2]string{"SET k longer", "OK"}, [2]string{"GET k", "longer"})
}

func TestExpiryFreesTheQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxKeys: 1})
	a := w.client("a")
	a.wait("SET k v PX=100")
	w.clock.advance(100)
	w.e.ExpireDue()
	if got := show(a.wait("SET other v")); got != "OK" {
		t.Errorf("after the expiry: %s", got)
	}
}

func TestTombstonesGoWhenTheyAreDurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a, b := w.client("a"), w.client("b")
	for i := range 50 {
		a.do(fmt.Sprintf("SET k%d v", i))
		a.do(fmt.Sprintf("DEL k%d", i))
	}
	w.settle()
	if n := w.records(); n != 0 {
		t.Errorf("%d records are left of 50 deleted keys", n)
	}

	// One that is deleted, set and deleted again in one batch goes once.
	w.disk.Hold()
	for _, text := range []string{"SET first v", "SET k v", "DEL k", "SET k v", "DEL k"} {
		a.do(text)
	}
	if n := w.records(); n != 2 {
		t.Errorf("%d records while the deletion is pending, want 2", n)
	}
	w.disk.Release(nil)
	w.settle()
	if n := w.records(); n != 1 {
		t.Errorf("%d records after it, want 1", n)
	}

	// One that was set again stays.
	w.disk.Hold()
	for _, text := range []string{"SET k v", "DEL k", "SET k w"} {
		a.do(text)
	}
	w.disk.Release(nil)
	w.settle()
	if got := show(a.wait("GET k")); got != "w" || w.records() != 2 {
		t.Errorf("k = %s, %d records", got, w.records())
	}

	// A watched one stays for its watchers, and goes with the last of them.
	for name, leave := range map[string]func(){
		"STOP":  func() { b.wait("STOP k"); b.wait("STOP none") },
		"Close": func() { b.Close() },
	} {
		b = w.client("b")
		b.wait("WATCH k")
		b.wait("WATCH none")
		a.wait("SET k v")
		a.wait("DEL k")
		w.settle()
		if n := w.records(); n != 3 {
			t.Errorf("%d records while watched, want first, k and none", n)
		}
		leave()
		if n := w.records(); n != 1 {
			t.Errorf("%d records after %s, want 1", n, name)
		}
	}

	// Also if they leave while the deletion is pending.
	b = w.client("b")
	b.wait("WATCH k")
	a.wait("SET k v")
	w.disk.Hold()
	a.do("DEL k")
	b.Close()
	w.disk.Release(nil)
	w.settle()
	if n := w.records(); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}

func TestReadyAndStats(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	a.wait("SET k value")
	a.wait("WATCH k")
	s := w.e.Stats()
	if s.Keys != 1 || s.Bytes != 6 || s.Watches != 1 || s.AheadMs != 0 || s.MaxKeys != DefaultMaxKeys {
		t.Errorf("stats: %+v", s)
	}
	if err := w.e.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}

	// When the wall clock is stepped back by more than a minute
	w.clock.wallMs.Add(-61_000)
	if err := w.e.Ready(); err == nil || !strings.Contains(err.Error(), "1m1s behind") {
		t.Errorf("Ready: %v", err)
	}
	if got := w.e.Stats().AheadMs; got != 61_000 {
		t.Errorf("ahead by %d ms", got)
	}
	// then waiting mends it,
	w.clock.advance(1_000)
	if err := w.e.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	// and so does permission.
	w.clock.wallMs.Add(-1_000_000)
	w.o.AllowClockRegression = true
	w.restart()
	if err := w.e.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
}

func TestClockWarningComesOnceAndIsTakenBack(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	w := newWorld(t, Options{})
	w.client("a").wait("SET k v")
	w.e.o.Logger = slog.New(slog.NewTextHandler(&text, nil))
	var said ahead.Warnings
	w.e.warnOfClock(&said)
	w.clock.wallMs.Add(-5_001)
	w.e.warnOfClock(&said)
	w.e.warnOfClock(&said)
	w.clock.advance(1)
	if w.e.warnOfClock(&said); said.Far {
		t.Error("still warns at 5 s")
	}
	if n := strings.Count(text.String(), "level=WARN"); n != 1 || !strings.Contains(text.String(), "no longer ahead") {
		t.Errorf("log:\n%s", text.String())
	}
}

func TestSystemClock(t *testing.T) {
	t.Parallel()
	c := systemClock{time.Now()}
	if c.SinceStart() < 0 || c.WallMs() < startMs {
		t.Errorf("%v, %v", c.SinceStart(), c.WallMs())
	}
}

func TestOpenNamesTheKeyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.j.Begin()
	a.Set([]byte(rows.KeyPrefix+"broken"), []byte{9})
	a.End(nil)
	w.j.WaitDurable()
	_, err := Open(w.o)
	if err == nil || !strings.Contains(err.Error(), `"broken"`) {
		t.Errorf("Open: %v", err)
	}
}
