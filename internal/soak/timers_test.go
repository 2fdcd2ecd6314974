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
// long other clients wait for a GET meanwhile.
func TestTimersOnDisk(t *testing.T) {
	t.Parallel()
	n := *timersFlag
	admin := testserver.FreeAddress()
	server := testserver.Run(t, "--listen", testserver.FreeAddress(), "--admin", admin)
	heap := func() float64 { return metric(t, admin, "go_memstats_heap_alloc_bytes") }
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

	waits := make(chan []time.Duration, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { waits <- gets(ctx, server.Addr, due) }()
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
	during := <-waits
	slices.Sort(during)
	if len(during) > 0 {
		t.Logf("the last came %.2f s after it was due: %.0f a second; meanwhile %d GETs by another client, of which 99 %% took at most %v, the longest %v",
			last.Sub(due).Seconds(), float64(n)/last.Sub(due).Seconds(), len(during), during[len(during)*99/100].Round(time.Microsecond), during[len(during)-1].Round(time.Microsecond))
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

// gets has another client ask for a key, one request after the other, from due on until ctx ends,
// and gives how long each took.
func gets(ctx context.Context, addr string, due time.Time) (took []time.Duration) {
	c, err := client.Dial(ctx, addr)
	if err != nil {
		return nil
	}
	defer c.Close()
	select {
	case <-time.After(time.Until(due)):
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		began := time.Now()
		if _, _, err := c.Get(ctx, "key"); err != nil {
			return took
		}
		took = append(took, time.Since(began))
	}
	return took
}
