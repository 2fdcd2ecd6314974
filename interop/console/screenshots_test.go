package console

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// The pictures of docs/console.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("-screenshots is not given")
	}
	s := serve(t)
	s.set("press/4/order", "{\n  \"order\": 1207,\n  \"part\": \"housing\",\n  \"done\": 41\n}")
	s.set("press/5/order", `{"order": 1208, "part": "lid", "done": 3}`)
	s.set("lock/press-4", "worker-7", "--px", "10m")
	for i := range 30 {
		s.set(fmt.Sprintf("sensor/%02d/temperature", i+1), fmt.Sprintf("%.1f", 20+float64(i*7%50)/10))
	}
	key := s.open("#/key/press%2f4%2forder")
	key.shows("pre.body", "1207")
	overview := s.open("#/")
	bench := exec.Command(binary, "bench", "--clients", "4", "--inflight", "2", "--for", "40s", "--keys", "200")
	bench.Env = append(os.Environ(), "HOLDFAST_PORT="+s.mqtt[len("127.0.0.1:"):])
	if err := bench.Start(); err != nil {
		t.Fatal(err)
	}
	s.set("press/4/order", "{\n  \"order\": 1207,\n  \"part\": \"housing\",\n  \"done\": 42\n}", "--px", "24h")
	key.shows(".changes .added", "42")
	key.await("its expiry counts down", `/in 23 h/.test(document.querySelector('.facts').textContent)`)
	key.look("light", 1240, 666)
	key.shoot("key.png")
	if err := bench.Wait(); err != nil {
		t.Fatal(err)
	}
	overview.await("charts", `document.querySelectorAll('.chart canvas').length === 6`)
	overview.look("light", 1280, 800)
	overview.shoot("overview.png")
	overview.look("dark", 390, 800)
	overview.visit("#/keys/sensor")
	overview.shows("td.key", "sensor/01/temperature")
	overview.shoot("keys-phone-dark.png")
}

// shoot writes a picture of what the browser shows.
func (p *tab) shoot(name string) {
	p.t.Helper()
	var picture []byte
	p.do(chromedp.CaptureScreenshot(&picture))
	if err := os.WriteFile(filepath.Join(*screenshots, name), picture, 0o644); err != nil {
		p.t.Fatal(err)
	}
	if most := 150 << 10; len(picture) > most {
		p.t.Errorf("%s has %d bytes, more than %d", name, len(picture), most)
	}
}
