package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// The server's own bridge passes messages to and from a real Mosquitto at QoS 2, in both
// versions of MQTT, and goes on where it was when either side was killed.
func TestBridgeToMosquitto(t *testing.T) {
	forEachBridge(t, func(t *testing.T, version string) {
		there := runMosquitto(t, "")
		prefix := uniqueTopic("plant")
		config := filepath.Join(t.TempDir(), "holdfast.yaml")
		text := fmt.Sprintf(`bridges:
  - name: plant
    url: mqtt://%s
    version: %s
    client-id: the-bridge
    topics:
      - {filter: "#", direction: out, qos: 2, local-prefix: %s/out/, remote-prefix: site/}
      - {filter: "#", direction: in, qos: 2, local-prefix: %s/in/, remote-prefix: orders/}
      - {filter: %s/both/#, direction: both, qos: 2}
`, there.server.tcp, version, prefix, prefix, prefix)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := ownServerWith(t, "--config", config)
		here := newMosquitto(t, s, v5)
		state := func() *subscriber {
			sub := here.subscribe(t, "%p", "-t", "$SYS/broker/connection/plant/state", "-q", "0")
			sub.await(t, "the bridge's state", func(string) bool { return slices.Contains(sub.messages(), "1") })
			return sub
		}
		state()

		// When messages go both ways, then each arrives once, and none comes back.
		const many = 300
		farSide := uniqueName("far-side")
		atServer := here.subscribe(t, "%q %t %p", "-t", prefix+"/#", "-q", "2", "-c", "-i", uniqueName("near-side"))
		atMosquitto := there.subscribe(t, "%q %t %p", "-t", "site/#", "-t", prefix+"/#", "-q", "2", "-c", "-i", farSide)
		here.publishLines(t, prefix+"/out/a", lines(many), "-q", "2")
		there.publishLines(t, "orders/b", lines(many), "-q", "2")
		here.publishLines(t, prefix+"/both/c", lines(many), "-q", "2")
		there.publishLines(t, prefix+"/both/d", lines(many), "-q", "2")
		atServer.mustGet(t, "at the server", prefix+"/in/b", lines(many))
		atMosquitto.mustGet(t, "at Mosquitto", "site/a", lines(many))
		for name, sub := range map[string]*subscriber{"server": atServer, "Mosquitto": atMosquitto} {
			for _, topic := range []string{"/both/c", "/both/d"} {
				sub.mustGet(t, "at the "+name, prefix+topic, lines(many))
			}
		}

		// When Mosquitto is killed, what comes meanwhile waits on the server's disk, also while
		// the server is killed.
		there.awaitSaved(t, "the sessions", farSide, "site/#", "the-bridge", "orders/#")
		there.kill()
		here.publishLines(t, prefix+"/out/e", lines(many), "-q", "2")
		s.kill()
		s.restart(t)
		there.start(t)
		atMosquitto.mustGet(t, "after a kill of Mosquitto", "site/e", lines(many))

		// When the server is killed while messages go through, none is lost or doubled. Mosquitto is
		// paused until the server has them all: mosquitto_pub gives up, with status 0, when a TLS connection
		// breaks, and so must have ended before the kill.
		there.signal(t, syscall.SIGSTOP)
		here.publishLines(t, prefix+"/out/f", lines(many), "-q", "2")
		there.signal(t, syscall.SIGCONT)
		atMosquitto.await(t, "some of the messages", func(string) bool { return len(ofTopic(atMosquitto.messages(), "site/f")) > 20 })
		s.kill()
		s.restart(t)
		atMosquitto.mustGet(t, "after a kill of the server", "site/f", lines(many))
	})
}

// forEachBridge runs a test with each version in which a bridge speaks to another broker.
func forEachBridge(t *testing.T, test func(t *testing.T, version string)) {
	t.Parallel()
	for _, version := range []string{"5", "3.1.1"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}
