package interop

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

// Mosquitto serves with a configuration, then Holdfast in its place, on the same port, with what
// `holdfast import-mosquitto` has made of it: the same clients may do the same, and the bridge passes
// the same messages to another broker.
func TestImportedMosquittoConfiguration(t *testing.T) {
	if site != "" {
		t.Skip("the configuration that is converted has no mutual TLS")
	}
	needMosquittoPasswd(t)
	dir, address := t.TempDir(), steadyAddress(t)
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	users := filepath.Join(dir, "users")
	runProgram(t, "mosquitto_passwd", "-c", "-b", users, "a", "a")
	runProgram(t, "mosquitto_passwd", "-b", users, "everything", "everything")
	acl := write("acl", "user a\ntopic readwrite own/#\ntopic read news/+\npattern write dev/%c/#\nuser everything\ntopic readwrite #\n")
	other := startMosquitto(t, users, "allow_anonymous true")
	_, port, _ := net.SplitHostPort(address)
	conf := write("mosquitto.conf", fmt.Sprintf(`per_listener_settings true
persistence true
persistence_location %s/
max_inflight_messages 10
max_keepalive 600
persistent_client_expiration 1d
log_type information
user root

listener %s 127.0.0.1
password_file %s
acl_file %s
allow_anonymous false

connection up
address %s
topic own/up/# out 1 "" from/
notifications false
`, dir, port, users, acl, other.tcp))
	made := filepath.Join(dir, "made")
	out, err := exec.CommandContext(deadline(t), binary, "import-mosquitto", conf, "--out", made).CombinedOutput()
	for _, named := range []string{":8: user: ", ":18: notifications: ", ": 2 lines to look at"} {
		if err == nil || !strings.Contains(string(out), named) {
			t.Fatalf("holdfast import-mosquitto: %v; its output lacks %q:\n%s", err, named, out)
		}
	}
	runProgram(t, binary, "config", "--config", filepath.Join(made, "holdfast.yaml"))

	at := &aclBroker{server: &server{tcp: address, output: other.output}}
	may := map[string]map[string]bool{}
	for _, broker := range []string{"Mosquitto", "Holdfast"} {
		t.Run(broker, func(t *testing.T) {
			if broker == "Mosquitto" {
				at.server = serveMosquitto(t, conf, address)
			} else {
				own := ownServerWith(t, "--config", filepath.Join(made, "holdfast.yaml"))
				at.server = &server{tcp: address, output: own.output}
			}
			may[broker] = at.whatMay(t)

			behind := (&aclBroker{server: other}).enter(t, "everything", "behind")
			t.Cleanup(behind.close)
			behind.maySubscribe(t, "from/#")
			c := at.enter(t, "a", "publisher")
			t.Cleanup(c.close)
			c.publish(t, "own/up/x", 1, broker)
			if p := behind.read(t, packets.PUBLISH).Content.(*packets.Publish); p.Topic != "from/own/up/x" || string(p.Payload) != broker {
				t.Errorf("the bridge passes %q to %s", p.Payload, p.Topic)
			}
		})
	}
	if !maps.Equal(may["Mosquitto"], may["Holdfast"]) || len(may["Holdfast"]) == 0 {
		t.Errorf("clients of Mosquitto may %v,\nthose of Holdfast %v", may["Mosquitto"], may["Holdfast"])
	}
}

// whatMay is what clients of a broker may do: log in, publish, and get messages.
func (b *aclBroker) whatMay(t *testing.T) map[string]bool {
	t.Helper()
	may := map[string]bool{}
	m := newMosquitto(t, b.server, mosquittoVersions[0])
	for _, login := range [][2]string{{"a", "a"}, {"a", "wrong"}, {"unknown", "a"}, {"everything", "everything"}} {
		may[fmt.Sprintf("log in as %q", login)] = m.login(t, login[0], login[1]) == nil
	}
	may["connect without a name"] = m.command(t, "mosquitto_pub", "-t", "own/x", "-m", "x", "-q", "1").Run() == nil
	if b.all == nil {
		b.all = b.enter(t, "everything", "all")
		t.Cleanup(func() { b.all.close(); b.all = nil })
	}
	for _, id := range []string{"one", "two"} {
		c := b.enter(t, "a", id)
		t.Cleanup(c.close)
		for _, topic := range []string{"own/x", "news/today", "dev/one/speed", "dev/two/speed", "other"} {
			may[id+" publish to "+topic] = c.mayPublish(t, topic)
		}
	}
	c := b.enter(t, "a", "reader")
	t.Cleanup(c.close)
	topics := []string{"own/x", "news/today", "dev/reader/speed", "other"}
	for _, topic := range topics {
		c.maySubscribe(t, topic)
	}
	c.maySubscribe(t, "own/end")
	for _, topic := range append(topics, "own/end") {
		b.all.publish(t, topic, 0, "")
	}
	for {
		p := c.read(t, packets.PUBLISH).Content.(*packets.Publish)
		if p.Topic == "own/end" {
			return may
		}
		may["get messages of "+p.Topic] = true
	}
}
