package soak

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

var timersFlag = flag.Int("timers", 3000, "how many timers TestTimersOnDisk sets")

func TestMain(m *testing.M) { testserver.Main(m) }

// metric reads a figure of the server, by its name in /metrics.
func metric(t *testing.T, admin, name string) float64 {
	t.Helper()
	r, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if rest, found := strings.CutPrefix(line, name+" "); found {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// Many timers, which are due at once, cost rows on disk and next to no heap. They survive a
// restart, and each comes once (make timers: a million of them). What is logged are the figures of
// docs/reliability.md: how long the loading and a start take, how late the last timer comes, and how
// long other clients wait for a GET and for a SET before and meanwhile.
func TestTimersOnDisk(t *testing.T) {
	t.Parallel()
	n := *timersFlag
	admin := testserver.FreeAddress()
	server := testserver.Run(t, "--listen", testserver.FreeAddress(), "--admin", admin)
	heap := func() float64 {
		resp, err := http.Get("http://" + admin + "/debug/pprof/heap?gc=1") // garbage is no heap that timers take
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return metric(t, admin, "go_memstats_heap_alloc_bytes")
	}
	session, err := client.DialSession(t.Context(), server.Addr, client.WithClientID("timers"))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := session.Subscribe(t.Context(), "due"); err != nil {
		t.Fatal(err)
	}

	before, began := heap(), time.Now()
	due := began.Add(10*time.Second + time.Duration(n)*150*time.Microsecond)
	const portion = 1000
	for set := 0; set < n; set += portion {
		var batch []client.Message
		for i := set; i < min(set+portion, n); i++ {
			batch = append(batch, client.Message{Topic: "due", Payload: strconv.AppendInt(nil, int64(i), 10)}.At(due).WithTimerID(fmt.Sprintf("many/%d", i)))
		}
		if err := session.Publish(t.Context(), batch...); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d timers set in %.1f s, %.1f s before they are due", n, time.Since(began).Seconds(), time.Until(due).Seconds())
	if got := metric(t, admin, "holdfast_timers"); time.Now().Before(due) && int(got) != n {
		t.Errorf("%v timers wait, want %d", got, n)
	}
	server.Kill()
	began = time.Now()
	server.StartAgain()
	started := time.Since(began)
	early := time.Now().Before(due) // then no message is under way while the connection is lost
	after := heap()
	t.Logf("the server started on them in %.2f s; heap in use %.1f MiB before the first, %.1f MiB after the start", started.Seconds(), before/(1<<20), after/(1<<20))
	if most := before + 64*float64(n) + 64<<20; after > most {
		t.Errorf("the heap has %.0f bytes, want at most %.0f", after, most)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	requests := []struct {
		what string
		send func(context.Context, *client.Client) error
		took chan [2][]time.Duration // before the timers are due, and from then on
	}{
		{"GETs", func(ctx context.Context, c *client.Client) error { _, _, err := c.Get(ctx, "key"); return err }, make(chan [2][]time.Duration, 1)},
		{"SETs", func(ctx context.Context, c *client.Client) error {
			_, err := c.Set(ctx, "other", []byte("x"))
			return err
		}, make(chan [2][]time.Duration, 1)},
	}
	for _, r := range requests {
		go func() {
			waiting, stop := context.WithDeadline(ctx, due)
			defer stop()
			earlier := bystander(waiting, server.Addr, r.send)
			r.took <- [2][]time.Duration{earlier, bystander(ctx, server.Addr, r.send)}
		}()
	}
	came := make([]int, n)
	left := n
	var last time.Time
	for d, err := range session.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		i, err := strconv.Atoi(string(d.Payload))
		if err != nil || i < 0 || i >= n {
			t.Fatalf("got %q", d.Payload)
		}
		if now := time.Now(); now.Before(due.Truncate(time.Millisecond)) {
			t.Fatalf("timer %d came %v before it was due", i, due.Sub(now))
		}
		if came[i]++; came[i] == 1 {
			left--
		}
		d.Ack()
		if left == 0 {
			last = time.Now()
			break
		}
	}
	stop()
	t.Logf("the last came %.2f s after it was due: %.0f a second", last.Sub(due).Seconds(), float64(n)/last.Sub(due).Seconds())
	for _, r := range requests {
		for i, took := range <-r.took {
			if len(took) > 0 {
				slices.Sort(took)
				t.Logf("%s: %d %s by another client, of which 99 %% took at most %v, 99.9 %% %v, the longest %v", []string{"before", "meanwhile"}[i], len(took), r.what,
					took[len(took)*99/100].Round(time.Microsecond), took[len(took)*999/1000].Round(time.Microsecond), took[len(took)-1].Round(time.Microsecond))
			}
		}
	}
	for deadline := time.Now().Add(time.Minute); metric(t, admin, "holdfast_timers") != 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("timers are left")
		}
	}
	if doubles := slices.Max(came); early && doubles > 1 {
		t.Errorf("a timer came %d times, over a connection that stood", doubles)
	}
}

// bystander has another client send requests, one after the other, until ctx ends, and gives how
// long each took.
func bystander(ctx context.Context, addr string, request func(context.Context, *client.Client) error) (took []time.Duration) {
	c, err := client.Dial(ctx, addr)
	if err != nil {
		return nil
	}
	defer c.Close()
	for ctx.Err() == nil {
		began := time.Now()
		if request(ctx, c) != nil {
			return took
		}
		took = append(took, time.Since(began))
	}
	return took
}
