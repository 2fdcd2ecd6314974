package consistent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// errand is a message that orders a timer.
type errand struct {
	ID     string
	In     time.Duration // 0: cancel it
	ByTime bool          // give a time and no interval
}

func runErrand(c *consistent.Context, n int, e errand) (int, []consistent.Message, error) {
	m := consistent.JSON("late/"+e.ID, n).WithTimerID("errands/" + e.ID)
	switch {
	case e.In == 0:
		return n + 1, []consistent.Message{consistent.CancelTimer("errands/" + e.ID)}, nil
	case e.ByTime:
		return n + 1, []consistent.Message{consistent.At(c.Now().Add(e.In), m)}, nil
	}
	return n + 1, []consistent.Message{consistent.After(e.In, m), consistent.JSON("now/"+e.ID, n)}, nil
}

// Timers are set, replaced, cancelled and delivered on both paths, also after the server was
// started again.
func TestTimers(t *testing.T) {
	t.Parallel()
	for path, opts := range map[string][]consistent.Option{"transactions": nil, "state-based": {consistent.Replay()}} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			server := testserver.Run(t, "--listen", testserver.FreeAddress())
			connection := dial(t, server.Addr)
			p := transactional(t, connection, "errands", append(opts, quickly)...)
			_ = consistent.Handle(p, "errands", func(e errand) string { return e.ID }, runErrand)
			run(t, p)
			o := observe(t, server.Addr, "late/#")
			sent := 0
			send := func(errands ...errand) {
				for _, e := range errands {
					m := consistent.JSON("errands", e)
					m.UserProperties = append(m.UserProperties, consistent.UserProperty{Name: "id", Value: fmt.Sprint(sent)}, consistent.UserProperty{Name: "source", Value: "test"})
					sent++
					o.publish(t, m, m)
				}
			}
			await := func(ids ...string) {
				t.Helper()
				var got []string
				for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
					got = nil
					for timer, err := range connection.Client().Timers(t.Context(), "errands/") {
						if err != nil {
							t.Fatal(err)
						}
						got = append(got, timer.ID)
					}
					if slices.Equal(got, ids) {
						return
					}
				}
				t.Fatalf("timers %q, want %q", got, ids)
			}
			seen := map[string]bool{}
			late := func(id string) {
				t.Helper()
				m := o.next(t)
				for id, _ := m.UserProperties.Get("id"); seen[id]; id, _ = m.UserProperties.Get("id") {
					m = o.next(t) // the server had not had the acknowledgement when it was stopped
				}
				event, _ := m.UserProperties.Get("id")
				seen[event] = true
				_, after := m.UserProperties.Get("holdfast-deliver-after")
				at, _ := m.UserProperties.Get("time")
				if due, err := time.Parse(time.RFC3339Nano, at); m.Topic != "late/"+id || after || err != nil || time.Until(due) > time.Second {
					t.Errorf("%s came with %v, want late/%s", m.Topic, m.UserProperties, id)
				}
			}
			send(errand{ID: "a", In: time.Hour, ByTime: true}, errand{ID: "b", In: time.Hour}, errand{ID: "c", In: 50 * time.Millisecond}, errand{ID: "d", In: time.Hour})
			late("c")
			await("errands/a", "errands/b", "errands/d")
			server.Restart()
			send(errand{ID: "a"}, errand{ID: "b", In: 50 * time.Millisecond}, errand{ID: "c"})
			late("b")
			await("errands/d")
			send(errand{ID: "e", In: 50 * time.Millisecond, ByTime: true}, errand{ID: "d"})
			late("e")
			await()
		})
	}
}

// A timer that is further off than the server allows makes its message a dead letter, which says so.
// By a transaction nothing else of the message is done; one with the longest delay is.
func TestTimerThatIsTooFarOff(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	for path, opts := range map[string][]consistent.Option{"transactions": nil, "state-based": {consistent.Replay()}} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			c := dial(t, addr)
			p := transactional(t, c, path, append(opts, quickly)...)
			_ = consistent.Handle(p, "errands/"+path, func(e errand) string { return e.ID }, runErrand)
			run(t, p)
			o := observe(t, addr, "dead-letters/"+path, "now/"+path+"/#")
			const longest = 366 * 24 * time.Hour
			for id, in := range map[string]time.Duration{"beyond": longest + time.Millisecond, "longest": longest} {
				o.publish(t, consistenttest.Event(id, consistent.JSON("errands/"+path, errand{ID: path + "/" + id, In: in})))
			}
			for range 2 {
				switch got := o.next(t); got.Topic {
				case "dead-letters/" + path:
					reason, _ := got.UserProperties.Get(consistent.DeadLetterReason)
					if id, _ := got.UserProperties.Get("id"); id != "beyond" || !strings.Contains(reason, "--max-delay") {
						t.Errorf("the dead letter of %s says %q", id, reason)
					}
				case "now/" + path + "/longest":
				default:
					t.Errorf("got %s", got.Topic)
				}
			}
			if s, _ := state(t, c, path+"/"+path+"/longest"); s != "1" {
				t.Errorf("with the longest delay the state is %q", s)
			}
			if s, _ := state(t, c, path+"/"+path+"/beyond"); path == "transactions" && s != "" {
				t.Errorf("beyond it the state is %q", s)
			}
			var timers []string
			for timer, err := range c.Client().Timers(t.Context(), "errands/"+path+"/") {
				if err != nil {
					t.Fatal(err)
				}
				timers = append(timers, timer.ID)
			}
			if !slices.Equal(timers, []string{"errands/" + path + "/longest"}) {
				t.Errorf("timers %q", timers)
			}
		})
	}
}
