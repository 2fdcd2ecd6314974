package retained

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// shelf is a Store with a clock that the test sets.
type shelf struct {
	*Store
	now int64
}

func open(t *testing.T, bounds Bounds) *shelf {
	t.Helper()
	j, err := journal.Open(journal.Options{FS: vfs.NewMem(), Dir: "data"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	s := &shelf{now: 1}
	s.Store = New(Options{Journal: j, Memory: memory.NewPool(1 << 30), Now: func() int64 { return s.now }, Bounds: bounds})
	return s
}

// put publishes a retained message, which expires at a time, 0: never.
func (s *shelf) put(topic, payload, publisher string, expires int64) bool {
	stripe := s.LockOf([]byte(topic))
	stripe.Lock()
	defer stripe.Unlock()
	return s.Put(&message.Outgoing{Topic: []byte(topic), Payload: []byte(payload), Publisher: publisher, Retain: true, ExpiresAt: expires})
}

func (s *shelf) topics(filter string) (topics []string) {
	s.Match(filter, "", 100, func(e *Entry) { topics = append(topics, e.Name()) })
	return topics
}

var roomy = Bounds{Messages: 100, Bytes: 1 << 20}

// The newest message of a topic is kept; one without payload deletes it.
func TestTheNewestMessageOfATopicIsKept(t *testing.T) {
	t.Parallel()
	s := open(t, roomy)
	s.put("a/1", "old", "c", 0)
	s.put("a/1", "new", "c", 0)
	s.put("a/2", "other", "c", 0)
	s.put("b", "gone", "c", 0)
	s.put("b", "", "c", 0)
	if m, found := s.Get([]byte("a/1")); !found || string(m.Payload()) != "new" {
		t.Errorf("a/1 has %v, %v", m, found)
	}
	if got := s.topics("a/+"); !slices.Equal(got, []string{"a/1", "a/2"}) {
		t.Errorf("a/+ matches %v", got)
	}
	if _, found := s.Get([]byte("b")); found || s.Len() != 2 {
		t.Errorf("b is there: %v; %d messages", found, s.Len())
	}
}

// At the bound a new topic finds no room, and the messages that are there can be replaced.
func TestRetainedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	s := open(t, Bounds{Messages: 32, Bytes: 1 << 20})
	for i := range 32 {
		if !s.put("t/"+string(rune('A'+i)), "x", "c", 0) {
			t.Fatalf("message %d of 32 was refused", i+1)
		}
	}
	if s.put("one more", "x", "c", 0) {
		t.Error("a message above the bound was stored")
	}
	if !s.put("t/A", "y", "c", 0) || s.Len() != 32 {
		t.Error("a message was not replaced at the bound")
	}
	if !s.put("$SYS/broker/uptime", "1", "", 0) || s.Len() != 32 {
		t.Error("the broker's own figures count")
	}
}

// A client that has filled the store does not lock another out that holds little.
func TestAClientThatHoldsLittleFindsRoom(t *testing.T) {
	t.Parallel()
	s := open(t, Bounds{Messages: 32, Bytes: 1 << 20})
	for i := range 32 {
		s.put("t/"+string(rune('A'+i)), "x", "fills", 0)
	}
	if !s.put("mine", "x", "other", 0) {
		t.Error("another client was refused its first message")
	}
}

// One that has expired goes, and makes room.
func TestMessagesThatHaveExpiredMakeRoom(t *testing.T) {
	t.Parallel()
	s := open(t, roomy)
	s.put("short", "x", "c", 100)
	s.put("long", "x", "c", 200)
	s.put("ever", "x", "c", 0)
	if s.now = 99; s.MakeRoom() {
		t.Error("a message went before its time")
	}
	if s.now = 100; !s.MakeRoom() || !slices.Equal(s.topics("#"), []string{"ever", "long"}) {
		t.Errorf("at its time %v are left", s.topics("#"))
	}
}
