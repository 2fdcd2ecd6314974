package console

import (
	"strconv"
	"strings"
	"testing"
)

// The server is killed and started three times while the page counts; after each start the page
// says that the key has what was acknowledged, and the counter goes on.
func TestCrashTest(t *testing.T) {
	s := serve(t)
	p := s.open("#/demo")
	p.connected()
	p.click("button.main", "Start the counter")
	const acknowledged = `Number(document.querySelector('.acknowledged').textContent.replace(/\D/g, ''))`
	seen := 0
	goesOn := func() {
		t.Helper()
		p.await("the counter goes on", acknowledged+" > "+strconv.Itoa(seen))
		seen, _ = strconv.Atoi(p.eval(acknowledged))
	}
	goesOn()
	p.await("there is a key", `document.querySelector('.tiles a')`)
	key := p.eval(`document.querySelector('.tiles a').textContent`)
	for i, said := range []string{"in 1 interruption.", "in 2 interruptions.", "in 3 interruptions."} {
		goesOn()
		s.process.Kill()
		p.shows(".banner", "No connection to the server")
		s.start()
		p.shows(".verdict.good", "Nothing that was acknowledged is lost, "+said)
		p.await("it is listed", "document.querySelectorAll('.crashes li').length === "+strconv.Itoa(i+1))
		goesOn()
		stored, err := strconv.Atoi(strings.TrimSpace(s.run("", "get", key)))
		if err != nil || stored < seen {
			t.Fatalf("the key has %d (%v), and %d were acknowledged", stored, err, seen)
		}
	}
	p.click("button", "Stop")
	p.shows("button.main", "Start the counter")
	p.shows(".verdict.good", "Nothing that was acknowledged is lost")
}
