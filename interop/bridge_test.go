package interop

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// bridge is a real Mosquitto broker, which is bridged to a server or has a server bridged to
// it.
type bridge struct {
	mosquitto        // clients of the Mosquitto broker
	name      string // of the connection
	config    string
	program   string
	process   *exec.Cmd
	output    *output
}

// startBridge runs Mosquitto with a bridge to the server: what is published on
// either side below out/ goes to the server, below in/ to Mosquitto, and below
// both/ either way.
func startBridge(t *testing.T, to *server, prefix string) *bridge {
	t.Helper()
	name := uniqueName("bridge")
	// Everything else is Mosquitto's default: notifications and try_private are true,
	// which make the will and the protocol level, and the version is 3.1.1.
	text := fmt.Sprintf(`connection %s
address %s
restart_timeout 1
cleansession false
topic %s/out/# out 2
topic %s/in/# in 2
topic %s/both/# both 2
`, name, to.tcp, prefix, prefix, prefix)
	if to.tls() {
		text += fmt.Sprintf("bridge_cafile %s\nbridge_certfile %s\nbridge_keyfile %s\n", siteFile("ca.crt"), siteFile("admin.crt"), siteFile("admin.key"))
	}
	if to.logins {
		text += fmt.Sprintf("remote_username %s\nremote_password %s\n", user, userPassword)
	}
	b := runMosquitto(t, text)
	b.name = name
	return b
}

// runMosquitto runs Mosquitto, which saves what it has each second, with a configuration
// that ends with these lines.
func runMosquitto(t *testing.T, more string) *bridge {
	t.Helper()
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/mosquitto"); err != nil {
			t.Skip("mosquitto is not installed (Debian: mosquitto): no bridge is tested with it")
		}
	}
	dir := t.TempDir()
	address := steadyAddress(t)
	_, port, _ := net.SplitHostPort(address)
	b := &bridge{mosquitto: newMosquitto(t, &server{tcp: address}, v311), config: filepath.Join(dir, "mosquitto.conf"), program: path}
	// Mosquitto is killed, and goes back to what it has saved last. QoS 2 messages that wait for
	// their PUBREL in that, although it came before the kill, hold their places in the session for
	// ever: with a bound of 20 (its default) there may be none left.
	text := fmt.Sprintf(`listener %s 127.0.0.1
allow_anonymous true
user root
persistence true
persistence_location %s/
autosave_interval 1
max_queued_messages 0
max_inflight_messages 0
%s`, port, dir, more)
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	t.Cleanup(func() {
		b.kill()
		if t.Failed() {
			t.Logf("last output of Mosquitto:\n%s", b.output.tail())
		}
	})
	return b
}

// awaitSaved waits until Mosquitto has saved something with each of these texts in it.
func (b *bridge) awaitSaved(t *testing.T, what string, texts ...string) {
	t.Helper()
	eventually(t, "Mosquitto saves "+what, func() bool {
		saved, _ := os.ReadFile(filepath.Join(filepath.Dir(b.config), "mosquitto.db"))
		return !slices.ContainsFunc(texts, func(text string) bool { return !bytes.Contains(saved, []byte(text)) })
	})
}

func (b *bridge) start(t *testing.T) {
	t.Helper()
	b.output = &output{changed: make(chan struct{}, 1)}
	b.process = exec.Command(b.program, "-v", "-c", b.config)
	b.process.Stdout, b.process.Stderr = b.output, b.output
	if err := b.process.Start(); err != nil {
		t.Fatal(err)
	}
}

// kill is kill -9.
func (b *bridge) kill() {
	_ = b.process.Process.Kill()
	_ = b.process.Wait()
}

// signal sends a signal to Mosquitto's process.
func (b *bridge) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := b.process.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// A Mosquitto bridge with its default settings connects, tells that it has, passes
// messages both ways at QoS 2, with many more under way than the 20 that it takes at
// once, and goes on where it was when either side was killed.
func TestMosquittoBridge(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	here := newMosquitto(t, s, v5)
	prefix := uniqueTopic("plant")

	// Given a bridge, which says by its notification that it is connected.
	b := startBridge(t, s, prefix)
	state := here.subscribe(t, "%p", "-t", "$SYS/broker/connection/+/state", "-q", "1")
	state.await(t, "the bridge's notification", func(string) bool {
		return slices.Contains(state.messages(), "1")
	})

	// When messages go both ways, then each arrives once, and none comes back.
	const many = 300
	atServer := here.subscribe(t, "%q %t %p", "-t", prefix+"/#", "-q", "2", "-c", "-i", uniqueName("server-side"))
	bridgeSide := uniqueName("bridge-side")
	atBridge := b.subscribe(t, "%q %t %p", "-t", prefix+"/#", "-q", "2", "-c", "-i", bridgeSide)
	here.publishLines(t, prefix+"/in/a", lines(many), "-q", "2")
	b.publishLines(t, prefix+"/out/b", lines(many), "-q", "2")
	here.publishLines(t, prefix+"/both/c", lines(many), "-q", "2")
	b.publishLines(t, prefix+"/both/d", lines(many), "-q", "2")
	for side, sub := range map[string]*subscriber{"server": atServer, "bridge": atBridge} {
		for _, topic := range []string{"/in/a", "/out/b", "/both/c", "/both/d"} {
			sub.mustGet(t, "at the "+side, prefix+topic, lines(many))
		}
	}

	// When Mosquitto is killed, its will says so, and what comes meanwhile waits.
	b.awaitSaved(t, "its subscriber's session", bridgeSide, prefix+"/#")
	b.kill()
	state.await(t, "the bridge's will", func(string) bool { return slices.Contains(state.messages(), "0") })
	here.publishLines(t, prefix+"/in/e", lines(many), "-q", "2")
	b.start(t)
	atBridge.mustGet(t, "after a kill of Mosquitto", prefix+"/in/e", lines(many))

	// When the server is killed while messages go through, none is lost or doubled for
	// a session that waits for them there.
	absent := uniqueName("absent")
	here.run(t, "mosquitto_sub", "-c", "-i", absent, "-q", "2", "-t", prefix+"/out/f", "-E")
	progress := here.subscribe(t, "%p", "-t", prefix+"/out/f", "-q", "0")
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.publishLines(t, prefix+"/out/f", lines(many), "-q", "2")
	}()
	progress.take(t, 20)
	s.kill()
	s.restart(t)
	<-done
	back := here.subscribe(t, "%q %t %p", "-c", "-i", absent, "-q", "2", "-t", prefix+"/out/f")
	back.mustGet(t, "after a kill of the server", prefix+"/out/f", lines(many))

	// And the bridge never had to begin anew for the sake of what was under way. (Over TLS
	// Mosquitto calls a connection that is reset by a kill a protocol error, too: EPROTO.)
	for line := range strings.Lines(b.output.String()) {
		if strings.Contains(line, "rotocol error") && !s.tls() {
			t.Errorf("Mosquitto says %s", line)
		}
	}
}

// mustGet waits for the messages of one topic, which must be these, in this order.
func (s *subscriber) mustGet(t *testing.T, what, topic string, want []string) {
	t.Helper()
	s.await(t, fmt.Sprintf("%d messages to %s %s", len(want), topic, what), func(string) bool {
		return len(ofTopic(s.messages(), topic)) >= len(want)
	})
	mustReceive(t, what, ofTopic(s.messages(), topic), want...)
}

// ofTopic gives the payloads of one topic, of QoS 2 messages printed as "%q %t %p".
func ofTopic(messages []string, topic string) (payloads []string) {
	for _, m := range messages {
		if payload, is := strings.CutPrefix(m, "2 "+topic+" "); is {
			payloads = append(payloads, payload)
		}
	}
	return payloads
}
