package console

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// axeCore is the code of axe-core, which finds what hinders people with disabilities.
func axeCore(t *testing.T) string {
	t.Helper()
	code, err := os.ReadFile(filepath.Join("axe", "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Skip("axe-core is not installed (npm ci --prefix axe): accessibility is not tested")
	}
	return string(code)
}

// load runs code in the page.
func (p *tab) load(code string) {
	p.t.Helper()
	p.eval(`(` + `(0, eval)(` + quote(code) + `), '')`)
}

// accessible has axe-core, which is loaded, look at what the page shows, light and dark, wide and
// narrow.
func (p *tab) accessible(address string) {
	p.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			p.look(scheme, width, 900)
			p.await("the page is "+scheme, `matchMedia('(prefers-color-scheme: `+scheme+`)').matches`)
			if found := p.eval(`axe.run({ resultTypes: ['violations'] }).then((r) => JSON.stringify(r.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical').map((v) => [v.id, v.help, v.nodes.slice(0, 3).map((n) => n.html + ' ' + n.failureSummary)]), null, 1))`); found != "[]" {
				p.t.Errorf("%s, %s, %d px: %s", address, scheme, width, found)
			}
			if wide := p.eval(`document.documentElement.scrollWidth > document.documentElement.clientWidth`); wide == "true" {
				p.t.Errorf("%s, %d px: the page is wider than the window", address, width)
			}
		}
	}
}

// axe-core finds nothing serious on any page, light or dark, wide or narrow.
func TestAccessible(t *testing.T) {
	axe := axeCore(t)
	s := serve(t)
	s.set("user/1", `{"name": "Ada"}`)
	s.set("lock/printer", "worker-7", "--px", "1h")
	s.run("", "pub", "--retain", "plant/7/temperature", "21.5")
	s.run("", "pub", "--after", "1h", "remind/me", "hello")
	s.keep("range", deadletter.Undecodable, "no number", client.Message{Topic: "range/shots", Payload: []byte("ten")}, true)
	mqtttest.Connect(t, s.mqtt, mqtttest.Persistent("press/7")).Subscribe("plant/+/mode", 1)
	p := s.open("#/")
	p.connected()
	p.load(axe)
	steps := map[string]func(){
		"#/":     func() { p.await("charts", `document.querySelectorAll('.chart canvas').length === 6`) },
		"#/keys": func() { p.shows("td.key", "user/1") },
		"#/key/user%2f1": func() {
			p.shows("pre.body", "Ada")
			p.click(".actions button", "Change")
			p.click(".actions button", "Delete")
			p.shows("dialog", "Delete the key")
		},
		"#/new":   func() { p.shows("h1", "New key") },
		"#/locks": func() { p.shows("td.value", "worker-7") },
		"#/topics": func() {
			p.click("form button", "Subscribe")
			p.shows(".messages", "21.5")
			p.click("form button", "Show")
			p.shows(".tree", "21.5")
		},
		"#/timers": func() { p.shows("td.value", "remind/me") },
		"#/processors": func() {
			p.shows(".tiles", "Duplicates")
			p.shows(".letters", "no number")
			p.await("there is a chart", `document.querySelector('.chart canvas')`)
			p.eval(`(document.querySelector('.letters summary').click(), '')`)
			p.shows(".letters pre", "ten")
		},
		"#/clients": func() { p.shows("tbody", "press/7") },
		"#/demo": func() {
			p.click("button.main", "Start the counter")
			p.shows(".verdict", "The server has not gone away yet.")
		},
		"#/policy": func() {
			p.fill("input[name=topic]", "plant/4/speed")
			p.click("button.main", "Explain")
			p.shows(".answer.allowed", "publish plant/4/speed")
		},
		"#/cluster": func() { p.shows("main", "This server is by itself") },
		"#/client/press%2F7": func() {
			p.shows(".plain", "plant/+/mode")
			p.click(".actions button", "Delete")
			p.shows("dialog", "This cannot be undone")
		},
	}
	for address, arrive := range steps {
		p.visit(address)
		arrive()
		p.accessible(address)
		p.visit("#/")
		p.await("the page is left", `!document.querySelector('dialog') && document.title.startsWith('Overview')`)
	}
}
