package console

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// keep writes a dead letter of a processor as package consistent does.
func (s *server) keep(processor string, code deadletter.Code, reason string, m client.Message, withPayload bool) *deadletter.Letter {
	s.t.Helper()
	letter := &deadletter.Letter{Processor: processor, Code: code, Reason: reason, Handler: "hits", Key: "press/4", MessageID: "m-17", Time: time.Now(), Message: m}
	letter.ID = letter.MakeID()
	value, err := letter.Encode(withPayload)
	if err != nil {
		s.t.Fatal(err)
	}
	s.set(letter.StoreKey(), string(value))
	return letter
}

// A dead letter is shown with its reason, is published again as it came, and is dropped.
func TestDeadLetters(t *testing.T) {
	s := serve(t)
	s.set("dead-letters/range/no letter", "x")
	shot := client.Message{
		Topic: "range/shots", Payload: []byte(`{"points": "ten"}`), ContentType: "application/json", CorrelationData: []byte{1, 2}, UTF8: true,
		UserProperties: []client.UserProperty{{Name: "id", Value: "17"}, {Name: "tag", Value: "a"}, {Name: "tag", Value: "b"}, {Name: "__proto__", Value: "x"}},
	}
	letter := s.keep("range", deadletter.Undecodable, "the payload is no number", shot, true)
	s.keep("press", deadletter.TooLarge, "no room", client.Message{Topic: "press/4", Payload: []byte(strings.Repeat("x", 100))}, false)
	listener := mqtttest.Connect(t, s.mqtt, mqtttest.ClientID("listener"))
	listener.Subscribe("range/#", 1)

	p := s.open("#/processors")
	p.shows(".letters", "the payload is no number")
	p.shows(".letters", "no room")
	p.await("two letters", `document.querySelectorAll('.letters > li').length === 2`)
	p.shows(".tiles", "Duplicates")
	p.fill("input[type=search]", "ran")
	p.click("form button", "Show")
	p.await("one of them", `document.querySelectorAll('.letters > li').length === 1`)
	p.eval(`(document.querySelector('.letters summary').click(), '')`)
	p.shows(".letters .facts", "press/4")
	p.shows(".letters .facts", "m-17")
	p.shows(".letters pre", `{"points": "ten"}`)
	p.click(".letters button", "Replay")
	p.shows("dialog[open]", "range/shots")
	p.click("dialog button", "Replay")
	m := listener.Receive()
	if m.Topic != shot.Topic || m.Payload != string(shot.Payload) || m.Retain || m.ContentType == nil || *m.ContentType != shot.ContentType || m.CorrelationData == nil || *m.CorrelationData != "\x01\x02" ||
		m.PayloadFormat == nil || *m.PayloadFormat != 1 || !slices.Contains(m.User, [2]string{"id", "17"}) || !slices.Contains(m.User, [2]string{"tag", "a"}) || !slices.Contains(m.User, [2]string{"tag", "b"}) || !slices.Contains(m.User, [2]string{"__proto__", "x"}) {
		t.Errorf("it is published as %+v", m)
	}
	p.shows("main", "The message has been published again.")
	p.shows("main", "There are no dead letters that you may read.")
	if got := s.run("", "dead-letters", "list"); strings.Contains(got, letter.ID) || !strings.Contains(got, "no room") {
		t.Errorf("there are:\n%s", got)
	}

	p.fill("input[type=search]", "")
	p.click("form button", "Show")
	p.click(".letters button", "Replay")
	p.click("dialog button", "Replay")
	p.shows(".problem", "kept without its payload of 100 B")
	p.click(".letters button", "Drop")
	p.shows("dialog[open]", "The message is then lost.")
	p.click("dialog button", "Cancel")
	p.await("the question is gone", `!document.querySelector('dialog')`)
	p.click(".letters button", "Drop")
	p.click("dialog button", "Drop")
	p.shows("main", "The letter has been dropped.")
	p.shows("main", "There are no dead letters that you may read.")
}

// A letter that has another form, or whose fields are other than expected, is shown as such.
func TestDamagedLetters(t *testing.T) {
	s := serve(t)
	id := strings.Repeat("0123456789abcdef", 2)
	for name, value := range map[string]string{
		"a": "no JSON", "b": `{"format": 2}`, "c": `null`, "d": `{"format": 1, "message": null, "time": "never", "reason": {"a": 1}}`, "e": `{"format": 1, "message": {"payload_base64": "?"}, "time": 5}`,
	} {
		s.set("dead-letters/"+name+"/"+id, value)
	}
	p := s.open("#/processors")
	p.await("all of them", `document.querySelectorAll('.letters > li').length === 5`)
	p.await("none can be read", `[...document.querySelectorAll('.letters > li')].every((l) => l.textContent.includes('cannot be read'))`)
	p.eval(`([...document.querySelectorAll('.letters summary')].forEach((s) => s.click()), '')`)
	p.await("each is opened", `[...document.querySelectorAll('.letters details')].every((d) => d.open && d.querySelector('.problem'))`)
}
