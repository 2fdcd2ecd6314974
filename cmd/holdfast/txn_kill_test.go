package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// Through kills at any moment, each transaction of several streams is there as a whole or not at all:
// five keys, what it remembers of its message, and two messages for a session that is away, one of
// which it retains. Those that were answered are there, and one more at most of each stream.
func TestTransactionsThroughKills(t *testing.T) {
	t.Parallel()
	const kills, streams, keys = 5, 4, 5
	d := serveIn(t, t.TempDir())
	away := mqtttest.Connect(t, d.Addr, mqtttest.Persistent("away"))
	away.Subscribe("first/+", 2)
	away.Subscribe("second/+", 2)
	away.Disconnect()
	answered := make([]int, streams) // the last transaction of each stream, from 1
	for range kills {
		var working sync.WaitGroup
		enough := make(chan struct{}, streams)
		for s := range streams {
			working.Go(func() {
				c := mqtttest.Connect(untilKilled{t}, d.Addr)
				answers := fmt.Sprint("answers/", s)
				c.Subscribe(answers, 1)
				for sent := 1; ; sent++ {
					n := answered[s] + 1
					text := fmt.Sprintf("ONCE once%d %d PUBLISH first/%d %d RETAIN PUBLISH second/%d %d QOS 2", s, n, s, n, s, n)
					for k := range keys {
						text += fmt.Sprintf(" SET %d/%d %d", s, k, n)
					}
					if got := rawBy(c, answers, strings.Fields(text)...); !strings.HasPrefix(got, "*2\r\n:1\r\n") {
						t.Errorf("transaction %d of stream %d: %q", n, s, got)
					}
					if answered[s] = n; sent == 30 {
						enough <- struct{}{}
					}
				}
			})
		}
		for range streams {
			select {
			case <-enough:
			case <-time.After(mqtttest.Deadline):
				t.Fatal("the streams have stopped")
			}
		}
		d.Kill()
		working.Wait()
		d.StartAgain()
		c, retained := mqtttest.Connect(t, d.Addr), mqtttest.Connect(t, d.Addr)
		c.Subscribe("answers/raw", 1)
		holds := func(condition string) bool {
			return strings.HasPrefix(raw(c, strings.Fields(condition)...), "*2\r\n:1\r\n")
		}
		for s := range streams {
			last := answered[s]
			if holds(fmt.Sprintf("IF %d/0 VALUE %d", s, last+1)) {
				last++ // its answer was lost
			}
			for k := range keys {
				if !holds(fmt.Sprintf("IF %d/%d VALUE %d", s, k, last)) {
					t.Errorf("stream %d: key %d has not the value of transaction %d", s, k, last)
				}
			}
			if holds(fmt.Sprintf("ONCE once%d %d", s, last)) {
				t.Errorf("stream %d: transaction %d is not remembered", s, last)
			}
			retained.Subscribe(fmt.Sprint("first/", s), 0)
			if m := retained.Receive(); m.Payload != fmt.Sprint(last) {
				t.Errorf("stream %d: %s is retained, want %d", s, m.Payload, last)
			}
			answered[s] = last
		}
	}
	away = mqtttest.Connect(t, d.Addr, mqtttest.Persistent("away"), mqtttest.Resume())
	mqtttest.Connect(t, d.Addr).Publish(mqtttest.Message{Topic: "first/end", Payload: "end", QoS: 2})
	next := map[string]int{}
	for m := away.Receive(); m.Topic != "first/end"; m = away.Receive() {
		if next[m.Topic]++; m.Payload != fmt.Sprint(next[m.Topic]) {
			t.Fatalf("got %s of %s, want %d", m.Payload, m.Topic, next[m.Topic])
		}
	}
	for s, last := range answered {
		if first, second := next[fmt.Sprint("first/", s)], next[fmt.Sprint("second/", s)]; first != last || second != last {
			t.Errorf("stream %d: %d and %d messages of %d transactions", s, first, second, last)
		}
	}
}
