package wire

import (
	"strings"
	"testing"
)

func TestARequestIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	packet := AppendRequest(nil, 7, "my/answers", "1:2:n", "SET", "key", strings.Repeat("v", 4096))
	header, body, n := Split(packet)
	if n != len(packet) {
		t.Fatalf("Split takes %d of %d bytes", n, len(packet))
	}
	if _, _, n := Split(packet[:n-1]); n != 0 {
		t.Error("Split takes a packet that is cut short")
	}
	var m Message
	m.Parse(header, body)
	topic, correlation := m.Request()
	verb, value := Command(m.Payload)
	if m.ID != 7 || string(m.Topic) != InvokeTopic || string(topic) != "my/answers" || len(correlation) != 16 ||
		string(verb) != "SET" || string(Key(m.Payload)) != "key" || len(value) != 4096 {
		t.Errorf("got id %d topic %q response topic %q verb %q key %q", m.ID, m.Topic, topic, verb, Key(m.Payload))
	}
}
