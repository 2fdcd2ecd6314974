package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// A message is published later, listed, replaced and cancelled.
func TestTimers(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir())
	at := time.Now().Add(48 * time.Hour).UTC().Format("2006-01-02T15:04:05")
	for _, args := range [][]string{
		{"pub", "--after", "1h", "--id", "a/1", "out", "never"},
		{"pub", "--at", at + "Z", "--id", "a/2", "out", "never"},
		{"pub", "--after", "1h", "out", "never"},
		{"pub", "--after", "0", "--retain", "out/now", "now"},
	} {
		if r := d.run(args...); r.code != 0 || r.out != "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := d.run("sub", "--count", "1", "out/now"); r.out != "now\n" {
		t.Errorf("sub: %+v", r)
	}
	if r := d.run("timers", "list", "a/"); strings.Count(r.out, "\n") != 2 || !strings.HasSuffix(r.out, at+".000Z a/2 out\n") {
		t.Errorf("list: %+v", r)
	}
	if r := d.run("timers", "list", "--output", "json", "a/2"); r.out != `{"due":"`+at+`.000Z","id":"a/2","topic":"out"}`+"\n" {
		t.Errorf("as JSON: %+v", r)
	}
	if r := d.run("timers", "cancel", "a/1", "a/2"); r.code != 0 || r.out != "" {
		t.Errorf("cancel: %+v", r)
	}
	if r := d.run("timers", "cancel", "a/1"); r.code != 1 || !strings.Contains(r.err, "there is no such timer: a/1") {
		t.Errorf("cancel again: %+v", r)
	}
	if r := d.run("timers", "list"); strings.Count(r.out, "\n") != 1 {
		t.Errorf("list: %+v", r)
	}
	for _, bad := range [][]string{
		{"pub", "--after", "-1s", "out", "x"}, {"pub", "--after", "1s", "--at", at + "Z", "out", "x"}, {"pub", "--at", "tomorrow", "out", "x"},
		{"pub", "--id", "a", "out", "x"}, {"pub", "--after", "1s", "--id", "", "out", "x"}, {"pub", "--after", "1s", "--id", strings.Repeat("x", 257), "out", "x"},
		{"pub", "--after", "1s", "--id", "x", "-l", "out"}, {"pub", "--after", "10000h", "out", "x"}, {"timers", "cancel"}, {"timers", "cancel", ""}, {"timers", "list", "a", "b"}, {"timers"},
	} {
		if r := d.run(bad...); r.code != 2 {
			t.Errorf("%q: %+v", bad, r)
		}
	}
}

// Through kills at any moment, with timers that become due before, during and after each of
// them, every timer that was acknowledged is delivered once at QoS 1 and 2, and none twice.
func TestTimersThroughKills(t *testing.T) {
	t.Parallel()
	const kills, publishers = 6, 4
	d := serveIn(t, t.TempDir())
	away := mqtttest.Connect(t, d.Addr, mqtttest.Persistent("away"))
	away.Subscribe("out", 2)
	away.Disconnect()
	sent, acknowledged := map[string]bool{}, map[string]bool{}
	var mu sync.Mutex // sent, acknowledged
	for life := range kills {
		var working sync.WaitGroup
		enough := make(chan struct{}, publishers)
		for p := range publishers {
			working.Go(func() {
				c := mqtttest.Connect(untilKilled{t}, d.Addr, mqtttest.ClientID(fmt.Sprint("publisher/", p)))
				for i := 0; ; i++ {
					if i == 50 {
						enough <- struct{}{}
					}
					payload := fmt.Sprintf("%d/%d/%d", life, p, i)
					m := mqtttest.Message{Topic: "out", Payload: payload, QoS: 1 + byte(i%2), User: [][2]string{{"holdfast-deliver-after", fmt.Sprint(rand.IntN(500))}}}
					if i%3 == 0 {
						m.User = append(m.User, [2]string{"holdfast-timer-id", payload})
					}
					mu.Lock()
					sent[payload] = true
					mu.Unlock()
					if ack := c.Offer(m); ack.Code != mqtt.Success {
						t.Errorf("got 0x%02x %s", byte(ack.Code), ack.ReasonString)
					}
					mu.Lock()
					acknowledged[payload] = true
					mu.Unlock()
				}
			})
		}
		for range publishers {
			select {
			case <-enough:
			case <-time.After(mqtttest.Deadline):
				t.Fatal("the publishers have stopped")
			}
		}
		d.Kill()
		working.Wait()
		d.StartAgain()
	}
	for deadline := time.Now().Add(mqtttest.Deadline); d.run("timers", "list").out != ""; {
		if time.Now().After(deadline) {
			t.Fatal("timers are left")
		}
	}
	away = mqtttest.Connect(t, d.Addr, mqtttest.Persistent("away"), mqtttest.Resume())
	mqtttest.Connect(t, d.Addr).Publish(mqtttest.Message{Topic: "out", Payload: "the last", QoS: 2})
	got := map[string]int{}
	for got["the last"] == 0 {
		got[away.Receive().Payload]++
	}
	delete(got, "the last")
	for payload := range acknowledged {
		if got[payload] != 1 {
			t.Errorf("%s came %d times", payload, got[payload])
		}
	}
	for payload, n := range got {
		if n > 1 || !sent[payload] {
			t.Errorf("%s came %d times", payload, n)
		}
	}
}

// untilKilled is a test whose clients end silently when the server does.
type untilKilled struct{ testing.TB }

func (untilKilled) Fatalf(string, ...any) { runtime.Goexit() }
