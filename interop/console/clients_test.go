package console

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// The list shows clients that are connected and away, and a page for each what it has; an
// administrator disconnects a client, and deletes its session.
func TestClients(t *testing.T) {
	s := serve(t)
	press := mqtttest.Connect(t, s.mqtt, mqtttest.Persistent("press/7"), mqtttest.ReceiveMaximum(2), mqtttest.HoldAcks())
	press.Subscribe("plant/+/mode", 1)
	away := mqtttest.Connect(t, s.mqtt, mqtttest.Persistent("lathe"))
	away.Subscribe("plant/#", 1)
	away.Disconnect()
	away.AwaitEnd()
	for range 3 {
		s.run("", "pub", "plant/7/mode", "auto")
	}
	press.ReceiveN(2)

	p := s.open("#/clients")
	row := func(name string) string {
		return `[...document.querySelectorAll('tbody tr')].find((r) => r.textContent.includes(` + quote(name) + `))`
	}
	p.await("the page itself is a client", row("this page"))
	p.await("a client that is connected", row("press/7")+`?.textContent.includes('connected for')`)
	p.await("one that is away", row("lathe")+`?.textContent.includes('away for')`)
	p.fill("input[type=search]", "press")
	p.click("form button", "Show")
	p.await("it alone", `document.querySelectorAll('tbody tr').length === 1 && `+row("press/7"))
	p.fill("input[type=search]", "")
	p.eval(`(() => { const s = document.querySelector('select'); s.value = 'false'; s.dispatchEvent(new Event('change', { bubbles: true })); return ''; })()`)
	p.click("form button", "Show")
	p.await("those that are away", `document.querySelectorAll('tbody tr').length === 1 && `+row("lathe"))

	p.visit("#/client/press%2F7")
	p.shows("h1", "press/7")
	p.shows(".facts", "3 messages")
	p.shows(".facts", "2 of at most 2")
	p.shows(".plain", "plant/+/mode")
	p.click(".actions button", "Disconnect")
	p.shows("dialog[open]", "Disconnect the client press/7?")
	p.click("dialog button", "Cancel")
	p.await("the question is gone", `!document.querySelector('dialog')`)
	p.click(".actions button", "Disconnect")
	p.click("dialog button", "Disconnect")
	p.shows(".facts", "away for")
	press.AwaitDisconnect(mqtt.AdministrativeAction)
	p.await("it cannot be disconnected", `[...document.querySelectorAll('.actions button')].find((b) => b.textContent === 'Disconnect').disabled`)
	p.click(".actions button", "Delete")
	p.shows("dialog[open]", "3 messages? This cannot be undone.")
	p.click("dialog button", "Delete")
	p.shows("main", "There is no such client")
}

// More clients than a page has are listed in pages, and those of each page come when it is asked for.
func TestManyClients(t *testing.T) {
	s := serve(t)
	for i := range 60 {
		mqtttest.Connect(t, s.mqtt, mqtttest.ClientID("dev/"+string(rune('0'+i/10))+string(rune('0'+i%10))))
	}
	p := s.open("#/clients")
	p.fill("input[type=search]", "dev/")
	p.click("form button", "Show")
	rows := func(first, last string, n string) {
		t.Helper()
		p.await("the rows from "+first+" to "+last, `(() => { const r = document.querySelectorAll('tbody tr'); return r.length === `+n+` && r[0].textContent.includes(`+quote(first)+`) && r[r.length - 1].textContent.includes(`+quote(last)+`); })()`)
	}
	rows("dev/00", "dev/49", "50")
	p.click("button", "Next")
	rows("dev/50", "dev/59", "10")
	p.click("button", "Back")
	rows("dev/00", "dev/49", "50")
}
