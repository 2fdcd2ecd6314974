package delayed

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// run is a Store on a journal, with a wall clock that the test steps. What is due is published
// to a list.
type run struct {
	*Store
	t         *testing.T
	stepped   *atomic.Int64 // ms
	published []string      // payloads
	outcome   Outcome
}

const hour = int64(time.Hour / time.Millisecond)

// begin runs a Store that begins with the wall clock off by so many ms.
func begin(t *testing.T, j *journal.Journal, off int64, l limits.Limits) *run {
	t.Helper()
	stepped := new(atomic.Int64)
	stepped.Store(off)
	r := beginAt(t, j, l, func() int64 { return time.Now().UnixMilli() + stepped.Load() })
	r.stepped = stepped
	return r
}

// beginAt runs a Store with this wall clock.
func beginAt(t *testing.T, j *journal.Journal, l limits.Limits, wallMs func() int64) *run {
	t.Helper()
	r := &run{t: t}
	env := session.NewEnv(j, memory.NewPool(1<<30), l.WithDefaults(), slog.New(slog.DiscardHandler), wallMs)
	r.Store = New(env, Options{Publish: func(_ *session.Turn, o *message.Outgoing, keys [2][]byte) (Outcome, journal.Seq) {
		if r.outcome != Published {
			return r.outcome, 0
		}
		r.published = append(r.published, string(o.Payload))
		a := j.Begin()
		a.Delete(keys[0])
		a.Delete(keys[1])
		return Published, a.End(nil)
	}})
	if err := r.Load(); err != nil {
		t.Fatal(err)
	}
	return r
}

func openJournal(t testing.TB, fs vfs.FS) *journal.Journal {
	t.Helper()
	j, err := journal.Open(journal.Options{FS: fs, Dir: "data"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

// set sets a timer whose ID is its payload; a negative time is an interval.
func (r *run) set(id string, ms int64) Refusal {
	r.t.Helper()
	when := delay.Request{Asked: true, Ms: ms, ID: []byte(id)}
	if ms <= 0 {
		when.Relative, when.Ms = true, -ms
	}
	_, why := r.Set(Timer{Request: when, Message: &message.Outgoing{Topic: []byte("t"), Payload: []byte(id), QoS: 1, Publisher: "c"}}, nil, nil)
	return why
}

// rounds publishes what is due.
func (r *run) rounds() []string {
	r.published = nil
	for r.Round(nil) == 0 {
	}
	return r.published
}

// ids are those of all timers.
func (r *run) ids() (ids []string) {
	r.t.Helper()
	r.Journal.WaitDurable()
	page, more, err := r.List("", nil, nil, 0)
	if err != nil || more {
		r.t.Fatal(more, err)
	}
	for _, l := range page {
		ids = append(ids, string(l.ID))
	}
	return ids
}

// A step forward makes due what it has passed, but no interval that began in this run; that is
// written again, and holds after a restart.
func TestAStepForward(t *testing.T) {
	t.Parallel()
	j := openJournal(t, vfs.NewMem())
	r := begin(t, j, 0, limits.Limits{})
	r.set("at", time.Now().UnixMilli()+hour)
	r.set("interval", -hour)
	if got := r.rounds(); got != nil {
		t.Errorf("published %q before its time", got)
	}
	r.stepped.Store(2 * hour)
	if got := r.rounds(); !slices.Equal(got, []string{"at"}) {
		t.Errorf("published %q, want what is due at a time", got)
	}
	if got := r.ids(); !slices.Equal(got, []string{"interval"}) {
		t.Errorf("%q wait", got)
	}
	r = begin(t, j, 3*hour-time.Minute.Milliseconds(), limits.Limits{})
	if got := r.rounds(); got != nil {
		t.Errorf("published %q a minute before its time", got)
	}
	r.stepped.Store(3*hour + time.Minute.Milliseconds())
	if got := r.rounds(); !slices.Equal(got, []string{"interval"}) {
		t.Errorf("published %q, want the interval", got)
	}
}

// A step back delays nothing, and a timer that is set after it is due in its time.
func TestAStepBack(t *testing.T) {
	t.Parallel()
	r := begin(t, openJournal(t, vfs.NewMem()), 0, limits.Limits{})
	r.set("before", 0)
	r.stepped.Store(-2 * hour)
	r.set("after", 0)
	if got := r.rounds(); !slices.Equal(got, []string{"before", "after"}) {
		t.Errorf("published %q", got)
	}
}

// A timer that was set while the clock was far ahead gets its whole interval at the next start,
// and no more.
func TestARestartWithTheClockBehind(t *testing.T) {
	t.Parallel()
	j := openJournal(t, vfs.NewMem())
	r := begin(t, j, 1000*hour, limits.Limits{})
	r.set("interval", -hour)
	r.Journal.WaitDurable()
	r = begin(t, j, 0, limits.Limits{})
	if got := r.rounds(); got != nil {
		t.Errorf("published %q before its time", got)
	}
	r.stepped.Store(hour + time.Minute.Milliseconds())
	if got := r.rounds(); !slices.Equal(got, []string{"interval"}) {
		t.Errorf("published %q", got)
	}
}

// Timers that are due at once are published in their order, each once, however many pages.
func TestManyAreDueAtOnce(t *testing.T) {
	t.Parallel()
	r := begin(t, openJournal(t, vfs.NewMem()), 0, limits.Limits{})
	var want []string
	at := time.Now().UnixMilli() + hour
	for i := range 5 * pageTimers {
		want = append(want, fmt.Sprintf("%06d", i))
		r.set(want[i], at)
	}
	r.stepped.Store(2 * hour)
	if got := r.rounds(); !slices.Equal(got, want) {
		t.Errorf("published %d, want %d in their order", len(got), len(want))
	}
	if l := r.Levels(); l.Timers != 0 || l.Bytes != 0 {
		t.Errorf("%+v are left", l)
	}
	if used := r.Memory.UsedBy(memory.Sessions); used != 0 {
		t.Errorf("%d bytes are charged", used)
	}
}

// A message that finds no room is tried again, later each time, and one that is replaced or
// cancelled meanwhile is not.
func TestRetries(t *testing.T) {
	t.Parallel()
	r := begin(t, openJournal(t, vfs.NewMem()), 0, limits.Limits{})
	for _, id := range []string{"cancelled", "kept", "replaced"} {
		r.set(id, 0)
	}
	r.outcome = NoRoom
	for step, i := int64(0), 0; i < 20; i++ {
		r.stepped.Store(step)
		r.rounds()
		step += retryMost + 1
	}
	if got := r.ids(); !slices.Equal(got, []string{"cancelled", "kept", "replaced"}) || r.Counters.TimersRetried.Load() < 60 {
		t.Errorf("%q wait, tried again %d times", got, r.Counters.TimersRetried.Load())
	}
	if found, _, _ := r.Cancel(Cancel{ID: []byte("cancelled")}); !found {
		t.Error("it cannot be cancelled")
	}
	r.set("replaced", -1000*hour)
	r.outcome = Published
	r.stepped.Add(2 * retryMost)
	if got := r.rounds(); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("published %q", got)
	}
	if got := r.ids(); !slices.Equal(got, []string{"replaced"}) {
		t.Errorf("%q wait", got)
	}
}

// With a full disk timers wait, in their order.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	r := begin(t, openJournal(t, vfs.NewMem()), 0, limits.Limits{})
	r.set("a", 0)
	r.set("b", 0)
	r.outcome = NoDisk
	if wait := r.Round(nil); wait != pauseAfterError || r.published != nil {
		t.Errorf("it waits for %v, and published %q", wait, r.published)
	}
	r.outcome = Published
	if got := r.rounds(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("published %q", got)
	}
}

// Timers are found, replaced and cancelled while the database lacks their rows, and after it
// has them; after a crash all are there that were durable.
func TestTimersOnDisk(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	j := openJournal(t, fs)
	r := begin(t, j, 0, limits.Limits{})
	for i := range 300 {
		r.set(fmt.Sprintf("%03d", i), -hour)
		if i%3 == 0 {
			r.set(fmt.Sprintf("%03d", i/2), -2*hour)
		}
		if i%50 == 0 {
			r.ids() // has the database take the rows
		}
	}
	for i := range 100 {
		if found, _, why := r.Cancel(Cancel{ID: fmt.Appendf(nil, "%03d", i)}); !found || why != NotRefused {
			t.Fatalf("%03d is not found", i)
		}
	}
	want := r.ids()
	before := r.Levels()
	if len(want) != 200 || before.Timers != 200 {
		t.Fatalf("%d timers wait, %d are counted", len(want), before.Timers)
	}
	r = begin(t, openJournal(t, fs.CrashClone(vfs.CrashCloneCfg{})), 0, limits.Limits{})
	if got := r.ids(); !slices.Equal(got, want) {
		t.Errorf("after the crash there are %d", len(got))
	}
	if after := r.Levels(); after.Timers != before.Timers || after.Bytes != before.Bytes {
		t.Errorf("after the crash %+v are counted, before %+v", after, before)
	}
	if inv, err := rows.Check(r.Journal, func(what string) { t.Error(what) }); err != nil || inv.Timers != 200 {
		t.Errorf("the check found %d, %v", inv.Timers, err)
	}
}

// A change that is withdrawn leaves nothing.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	r := begin(t, openJournal(t, vfs.NewMem()), 0, limits.Limits{MaxTimers: 2})
	r.set("old", -hour)
	before := r.Levels()
	timer := func(id string) Timer {
		return Timer{Request: delay.Request{Asked: true, Relative: true, Ms: hour, ID: []byte(id)}, Message: &message.Outgoing{Topic: []byte("t"), Publisher: "d"}}
	}
	c, _, why := r.Prepare([]Timer{timer("old"), timer("new")}, nil)
	if why != NotRefused || !c.HasRows() {
		t.Fatal(why)
	}
	c.Withdraw()
	if _, refused, why := r.Prepare([]Timer{timer("old"), timer("new"), timer("third")}, nil); why != TooMany || refused != 2 {
		t.Errorf("the third of three is refused: %d, %v", refused, why)
	}
	if _, refused, why := r.Prepare([]Timer{timer("old"), timer("old")}, nil); why != Twice || refused != 1 {
		t.Errorf("the second with one ID is refused: %d, %v", refused, why)
	}
	before.LagMs = r.Levels().LagMs
	if after := r.Levels(); after != before {
		t.Errorf("%+v are left, want %+v", after, before)
	}
	if got := r.ids(); !slices.Equal(got, []string{"old"}) {
		t.Errorf("%q wait", got)
	}
}

// Damaged and salvaged rows: a message without the row of its ID is published, a row without
// its message is taken out.
func TestRowsThatLackTheirOther(t *testing.T) {
	t.Parallel()
	j := openJournal(t, vfs.NewMem())
	r := begin(t, j, 0, limits.Limits{})
	r.set("a", 0)
	r.set("b", -hour)
	r.Journal.WaitDurable()
	b, _, _ := r.find(rows.TimerIDKey("", []byte("b")))
	a := j.Begin()
	a.Delete(rows.TimerIDKey("", []byte("a")))
	a.Delete(rows.TimerKey(b.Due, b.Number))
	a.End(nil)
	j.WaitDurable()
	var problems []string
	if err := rows.Repair(j, func(what string) { problems = append(problems, what) }); err != nil || len(problems) != 1 || !strings.Contains(problems[0], "is missing") {
		t.Errorf("repaired %q, %v", problems, err)
	}
	r = begin(t, j, 0, limits.Limits{})
	if got := r.ids(); got != nil {
		t.Errorf("%q are listed", got)
	}
	r.Store.next = 0
	if got := r.rounds(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("published %q", got)
	}
}

// At eight tenths of a bound the log says so, once.
func TestNearTheBound(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	r := begin(t, openJournal(t, vfs.NewMem()), 0, limits.Limits{MaxTimers: 20, MaxClientTimers: 10})
	r.Log = slog.New(slog.NewTextHandler(&log, nil))
	for i := range 10 {
		if i == 8 && log.Len() > 0 {
			t.Errorf("too early: %s", log.String())
		}
		r.set(fmt.Sprint(i), -hour)
	}
	if got := log.String(); strings.Count(got, "timers come near their bound") != 1 || !strings.Contains(got, "client=c client_timers=9") {
		t.Errorf("the log has %q", got)
	}
	if why := r.set("one more", -hour); why != TooManyOfClient {
		t.Errorf("one more: %v", why)
	}
}

// A timer is published within 100 ms of its time and not before, whenever it is set and however far
// off it is, if looking at the timers takes no time. The clocks are the test's: it moves them as long
// as Serve would sleep. What Serve sees is the wall clock, and the time since the start, both cut to
// whole milliseconds.
func TestPrecision(t *testing.T) {
	t.Parallel()
	const precision = 100 * time.Millisecond
	for name, first := range map[string]time.Duration{"": 0, "behind a later timer": -time.Hour, "behind a close one": -30 * time.Millisecond} {
		for _, in := range []time.Duration{1, 20, 21, 100, 1001, 3_600_000} {
			in *= time.Millisecond
			for us := 0; us < 1000; us += 400 { // of the wall clock, behind that of the time since the start
				for _, relative := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/%v/%v/%d", name, in, relative, us), func(t *testing.T) {
						t.Parallel()
						start := time.UnixMilli(1_800_000_000_000).Add(time.Duration(us) * time.Microsecond)
						now := start.Add(444 * time.Microsecond)
						r := beginAt(t, openJournal(t, vfs.NewMem()), limits.Limits{}, func() int64 { return now.UnixMilli() })
						began := now
						r.Epoch = now.UnixMilli()
						r.elapsed = func() int64 { return now.Sub(began.Add(-777 * time.Microsecond)).Milliseconds() }
						if first != 0 {
							r.set("first", first.Milliseconds())
						}
						pause := r.look(nil)
						slept := pause/2 + 300*time.Microsecond
						now = now.Add(slept)
						set := now
						due := set.Add(in)
						if relative {
							r.set("it", -in.Milliseconds())
						} else {
							r.set("it", due.Truncate(time.Millisecond).UnixMilli())
							due = due.Truncate(time.Millisecond)
						}
						select {
						case <-r.wake:
							now = now.Add(tick)
						default:
							now = now.Add(pause - slept)
						}
						for !slices.Contains(r.published, "it") {
							if now.After(due.Add(precision)) {
								t.Fatalf("not published at %v, due at %v", now, due)
							}
							at := now
							now = now.Add(r.look(nil))
							if slices.Contains(r.published, "it") && at.Before(due) {
								t.Fatalf("published at %v, %v before its time", at, due.Sub(at))
							}
						}
					})
				}
			}
		}
	}
}
