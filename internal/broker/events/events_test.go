package events

import (
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// published collects what a Publisher publishes.
type published struct {
	mu     sync.Mutex
	topics []string
	last   map[string]any
	any    chan struct{}
}

func (p *published) publish(topic, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.topics, p.last = append(p.topics, string(topic)), nil
	if err := json.Unmarshal(payload, &p.last); err != nil {
		panic(err)
	}
	p.any <- struct{}{}
}

var client = Client{ID: "c", Remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711}, Protocol: mqtt.V5, KeepAlive: 60, CleanStart: true}

// A client ID is one level of the topic whatever it has, and different ones are different.
func TestTopicsOfOddClientIDs(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, id := range []string{"c", "a/b", "a%2Fb", "+", "#", "%", "", "a\x00b", "äöü", strings.Repeat("/", 1024)} {
		name := appendTopic(nil, Connected, id)
		if !topic.ValidName(name) || topic.Levels(string(name)) != 6 || !topic.OwnSys(name) || !topic.Matches("$SYS/brokers/+/clients/+/connected", name) {
			t.Errorf("%q: the topic is %q", id, name)
		}
		if before, twice := seen[string(name)]; twice {
			t.Errorf("%q and %q have the topic %q", before, id, name)
		}
		seen[string(name)] = id
	}
	if got := string(appendTopic(nil, Refused, "a/b+c#d%e")); got != "$SYS/brokers/holdfast/clients/a%2Fb%2Bc%23d%25e/refused" {
		t.Errorf("%q", got)
	}
}

// In a second as many events are published as may be, the next one is dropped, and counted in
// the event after it.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	const perSecond = 3
	var got published
	got.any = make(chan struct{}, 100)
	p := New(Options{PerSecond: perSecond, Wanted: func([]byte) bool { return true }, Publish: got.publish})
	for range perSecond + 1 {
		p.Connected(&client, false, 0)
	}
	second, stop, ended := make(chan time.Time), make(chan struct{}), make(chan struct{})
	go func() {
		p.serve(second, stop)
		close(ended)
	}()
	for range perSecond {
		<-got.any
	}
	for deadline := time.Now().Add(time.Minute); p.Dropped() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the event above the bound was not dropped")
		}
	}
	second <- time.Time{}
	p.Refused(&client, mqtt.NotAuthorized, "no")
	<-got.any
	close(stop)
	<-ended
	if p.Sent() != perSecond+1 || p.Dropped() != 1 || got.last["dropped"] != 1.0 || got.last["reason"] != "not_authorized" {
		t.Errorf("%d sent, %d dropped, the last: %v", p.Sent(), p.Dropped(), got.last)
	}
}

// Events that wait have a bound: the one above it is dropped, and no caller waits.
func TestWaitingEventsAreBounded(t *testing.T) {
	t.Parallel()
	p := New(Options{PerSecond: 1, Wanted: func([]byte) bool { return true }})
	for range maxWaiting {
		p.Connected(&client, false, 0)
	}
	if p.Dropped() != 0 {
		t.Errorf("%d dropped at the bound", p.Dropped())
	}
	p.Connected(&client, false, 0)
	if p.Dropped() != 1 {
		t.Errorf("%d dropped above the bound", p.Dropped())
	}
}

// Texts of a client's are cut.
func TestTextsAreBounded(t *testing.T) {
	t.Parallel()
	p := New(Options{PerSecond: 1, Wanted: func([]byte) bool { return true }})
	c := client
	c.ID, c.Username = strings.Repeat("ä", 512), []byte(strings.Repeat("u", 65535))
	p.Disconnected(&c, "client", mqtt.UnspecifiedError, strings.Repeat("r", 65535))
	e := <-p.waiting
	text, err := json.Marshal(&e.fields)
	if err != nil || len(text) > 1300 {
		t.Errorf("%d bytes: %.100s, %v", len(text), text, err)
	}
	if len(e.fields.ReasonString) != maxText+len("…") {
		t.Errorf("a reason of %d bytes", len(e.fields.ReasonString))
	}
}
