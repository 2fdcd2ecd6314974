package bridge_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// versions are the MQTT versions in which a bridge speaks to the other broker.
var versions = map[string]mqtt.Version{"5": mqtt.V5, "3.1.1": mqtt.V311}

// bridged runs two servers, of which near has a bridge to far, and returns when it is connected.
func bridged(t *testing.T, c bridge.Config) (near, far *testserver.Server) {
	t.Helper()
	far = testserver.Start(t)
	c.Name, c.URL = "plant", "mqtt://"+far.Addr
	near = testserver.Start(t, func(s *server.Config) {
		s.Bridges = []bridge.Config{c}
		s.SysInterval = 10 * time.Millisecond
	})
	awaitConnected(t, near.Addr, "plant")
	return near, far
}

// awaitConnected waits until a server says that its bridge is connected and has its
// subscriptions.
func awaitConnected(t *testing.T, addr, name string) {
	t.Helper()
	c := mqtttest.Connect(t, addr)
	subscribe(c, "$SYS/broker/connection/"+name+"/state", 0)
	c.Await("the bridge is connected", func(p *mqtttest.Packet) bool {
		return p.Publish != nil && p.Publish.Payload == "1"
	})
	c.Drop()
}

func subscribe(c *mqtttest.Client, filter string, qos byte) {
	c.Subscribe(filter, qos)
}

// Messages of each QoS pass in the directions of their rules, with other prefixes, and all
// that they have, as far as the version of MQTT knows it.
func TestMessagesPass(t *testing.T) {
	t.Parallel()
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := bridged(t, bridge.Config{Version: version, Topics: []bridge.Topic{
				{Filter: "up/#", Out: true, QoS: 2, LocalPrefix: "here/", RemotePrefix: "plant7/"},
				{Filter: "down/#", In: true, QoS: 2, RemotePrefix: "plant7/"},
				{Filter: "shared/+", Out: true, In: true, QoS: 1},
			}})
			atNear, atFar := mqtttest.Connect(t, near.Addr), mqtttest.Connect(t, far.Addr)
			for _, c := range []*mqtttest.Client{atNear, atFar} {
				subscribe(c, "plant7/up/#", 2)
				subscribe(c, "down/#", 2)
			}
			for qos := range byte(3) {
				m := mqtttest.Message{
					Payload: fmt.Sprint("at QoS ", qos), QoS: qos, ContentType: new("text/plain"), CorrelationData: new("\x00\xff"),
					ResponseTopic: new("answers/1"), PayloadFormat: new(byte(1)), Expiry: new(uint32(3600)), User: [][2]string{{"a", "b"}, {"a", "c"}},
				}
				for _, way := range []struct {
					from, to    *mqtttest.Client
					topic, then string
				}{
					{atNear, atFar, "here/up/1", "plant7/up/1"},
					{atFar, atNear, "plant7/down/1", "down/1"},
				} {
					m.Topic = way.topic
					way.from.Publish(m)
					got := awaitTopic(way.to, way.then)
					want := mqtttest.Message{Topic: way.then, Payload: m.Payload, QoS: qos}
					if version == mqtt.V5 {
						want = m
						want.Topic, want.User = way.then, append(want.User[:2:2], got.User[len(got.User)-1])
						if got.User[2][0] != bridge.ViaProperty {
							t.Errorf("%v: want %s as the last user property", got, bridge.ViaProperty)
						}
					} else {
						// The bridge's name for this broker is all that a message without properties gets.
						got.User = nil
					}
					if got = got.Content(); !reflect.DeepEqual(got, want) {
						t.Errorf("%v, want %v", got, want)
					}
				}
			}
			// What passes in both directions does not come back to where it is from.
			subscribe(atNear, "shared/#", 1)
			subscribe(atFar, "shared/#", 1)
			atNear.Publish(mqtttest.Message{Topic: "shared/2", Payload: "a", QoS: 1})
			awaitTopic(atFar, "shared/2")
			atFar.Publish(mqtttest.Message{Topic: "shared/3", Payload: "b", QoS: 1})
			awaitTopic(atNear, "shared/3")
			atNear.Publish(mqtttest.Message{Topic: "shared/end", QoS: 1})
			for name, c := range map[string]*mqtttest.Client{"near": atNear, "far": atFar} {
				for _, m := range received(c, "shared/end") {
					if m.Topic == "shared/2" && c == atFar || m.Topic == "shared/3" && c == atNear {
						t.Errorf("%s: %v came again", name, m)
					}
				}
			}
		})
	}
}

// awaitTopic is the next message, of that topic, that comes from another client.
func awaitTopic(c *mqtttest.Client, topic string) mqtttest.Message {
	return *c.Await("a message on "+topic, func(p *mqtttest.Packet) bool { return p.Publish != nil && p.Publish.Topic == topic }).Publish
}

// received are the messages until the first one of a topic.
func received(c *mqtttest.Client, last string) (all []mqtttest.Message) {
	for {
		m := awaitMessage(c)
		if m.Topic == last {
			return all
		}
		all = append(all, m)
	}
}

// While the other broker is away, and while the bridge's own broker is, messages wait; and
// each at QoS 2 passes once, in both directions, whichever broker is killed.
func TestExactlyOnceThroughKills(t *testing.T) {
	t.Parallel()
	for name := range versions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const kills, batch = 6, 40
			farAddr, dir := testserver.FreeAddress(), t.TempDir()
			far := testserver.Run(t, "--listen", farAddr)
			config := filepath.Join(dir, "holdfast.yaml")
			write(t, config, `bridges:
  - name: plant
    url: mqtt://`+farAddr+`
    version: `+name+`
    topics:
      - {filter: up/#, direction: out, qos: 2}
      - {filter: down/#, direction: in, qos: 2}
`)
			near := testserver.Run(t, "--listen", testserver.FreeAddress(), "--config", config)
			awaitConnected(t, near.Addr, "plant")
			ends := []*testserver.Program{near, far}
			send, receive := []string{"up/", "down/"}, []string{"down/#", "up/#"}
			for i, at := range ends { // a session in which all waits that comes
				c := mqtttest.Connect(t, at.Addr, mqtttest.Persistent("collector"))
				c.Subscribe(receive[i], 2)
				c.Drop()
			}
			for k := range kills {
				for i, to := range ends {
					p := mqtttest.Connect(t, to.Addr)
					for n := range batch { // the last ones are under way at the kill
						p.Publish(mqtttest.Message{Topic: send[i] + fmt.Sprint(n), Payload: fmt.Sprintf("%d of round %d", n, k), QoS: 2})
					}
					p.Drop()
				}
				ends[k%2].Restart()
			}
			for i, at := range ends {
				mqtttest.Connect(t, ends[1-i].Addr).Publish(mqtttest.Message{Topic: send[1-i] + "last", Payload: "last", QoS: 2})
				got := map[string]int{}
				for c := mqtttest.Connect(t, at.Addr, mqtttest.Persistent("collector")); got["last"] == 0; {
					got[awaitMessage(c).Payload]++
				}
				if len(got) != kills*batch+1 {
					t.Errorf("%s: %d different messages came, want %d", receive[i], len(got), kills*batch+1)
				}
				for payload, n := range got {
					if n != 1 {
						t.Errorf("%s: %q came %d times", receive[i], payload, n)
					}
				}
			}
		})
	}
}

func awaitMessage(c *mqtttest.Client) mqtttest.Message {
	return *c.Await("a message", func(p *mqtttest.Packet) bool { return p.Publish != nil }).Publish
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What waits for the first connection to the other broker is kept, retained messages too.
func TestOtherBrokerComesLater(t *testing.T) {
	t.Parallel()
	farAddr := testserver.FreeAddress()
	near := testserver.Start(t, func(s *server.Config) {
		s.Bridges = []bridge.Config{{Name: "plant", URL: "mqtt://" + farAddr, Topics: []bridge.Topic{{Filter: "#", Out: true, QoS: 1}}}}
		s.SysInterval = 10 * time.Millisecond
	})
	c := mqtttest.Connect(t, near.Addr)
	c.Publish(mqtttest.Message{Topic: "kept", Payload: "retained", QoS: 1, Retain: true})
	for { // the bridge's session begins beside the first attempt to connect
		ack := c.Offer(mqtttest.Message{Topic: "waits", Payload: "for the bridge", QoS: 1})
		if ack.Code == mqtt.Success {
			break
		}
	}
	list, err := exec.Command(testserver.Binary(), "session", "list", "--data", near.Config.DataDir).CombinedOutput()
	if err != nil || !regexp.MustCompile(`(?m)^bridge/plant .* never$`).Match(list) {
		t.Errorf("%v: the bridge's session expires, or there is none:\n%s", err, list)
	}
	far := testserver.Run(t, "--listen", farAddr)
	awaitConnected(t, near.Addr, "plant")
	first := mqtttest.Connect(t, far.Addr)
	subscribe(first, "kept", 1)
	if m := awaitTopic(first, "kept"); m.Payload != "retained" { // it may have come after the subscription
		t.Error(m)
	}
	later := mqtttest.Connect(t, far.Addr)
	subscribe(later, "kept", 1)
	if m := awaitTopic(later, "kept"); m.Payload != "retained" || !m.Retain {
		t.Error(m)
	}
}

// A bridge that has the URLs of several nodes goes on at the next one when its own dies, and passes what
// waited.
func TestNextNodeOfTheOtherBroker(t *testing.T) {
	t.Parallel()
	dead := testserver.FreeAddress()
	first, second := testserver.Run(t), testserver.Run(t)
	near := testserver.Start(t, func(s *server.Config) {
		s.Bridges = []bridge.Config{{
			Name: "plant", URL: "mqtt://" + dead + ", mqtt://" + first.Addr + ",mqtt://" + second.Addr,
			Topics: []bridge.Topic{{Filter: "#", Out: true, QoS: 1}},
		}}
		s.SysInterval = 10 * time.Millisecond
	})
	awaitConnected(t, near.Addr, "plant")
	c, atFirst, atSecond := mqtttest.Connect(t, near.Addr), mqtttest.Connect(t, first.Addr), mqtttest.Connect(t, second.Addr)
	subscribe(atFirst, "m/#", 1)
	subscribe(atSecond, "m/#", 1)
	c.Publish(mqtttest.Message{Topic: "m/1", QoS: 1})
	awaitTopic(atFirst, "m/1")
	first.Kill()
	c.Publish(mqtttest.Message{Topic: "m/2", QoS: 1})
	if m := awaitTopic(atSecond, "m/2"); m.Topic != "m/2" {
		t.Error(m)
	}
}

// What is wrong with a bridge's URL is said without the password in it.
func TestSettingsDoNotQuotePasswords(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"mqtt://u:s3cret@h", "mqtt://u:s3/cret@h", "mqtt://u:s3 cret@h", "mqtt://h,mqtt://u:s3cret@h", "u:s3cret@h:1883", "http://h/?token=s3cret"} {
		c := bridge.Config{Name: "plant", URL: url, Topics: []bridge.Topic{{Filter: "#", Out: true}}}
		if err := c.Check(); err == nil || strings.Contains(err.Error(), "s3") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// The settings of a bridge are checked.
func TestSettings(t *testing.T) {
	t.Parallel()
	good := bridge.Config{Name: "plant", URL: "mqtt://broker.example", Topics: []bridge.Topic{{Filter: "#", Out: true}}}
	for _, url := range []string{good.URL, "mqtts://a, wss://b:8884/mqtt,mqtts://c", strings.Repeat("mqtt://a,", 31) + "mqtt://a"} {
		c := good
		if c.URL = url; c.Check() != nil {
			t.Errorf("%s: %v", url, c.Check())
		}
	}
	topic := func(c bridge.Topic) func(*bridge.Config) {
		return func(b *bridge.Config) { b.Topics = []bridge.Topic{c} }
	}
	for want, change := range map[string]func(*bridge.Config){
		"name":                    func(c *bridge.Config) { c.Name = "" },
		"letters":                 func(c *bridge.Config) { c.Name = "a/b" },
		"1 to 64":                 func(c *bridge.Config) { c.Name = strings.Repeat("n", 65) },
		"no url":                  func(c *bridge.Config) { c.URL = "" },
		"must begin with mqtt":    func(c *bridge.Config) { c.URL = "http://broker.example" },
		"names no host":           func(c *bridge.Config) { c.URL = "mqtt://:1883" },
		"its url b must begin":    func(c *bridge.Config) { c.URL = "mqtt://a,b" },
		"it has no url":           func(c *bridge.Config) { c.URL = "mqtt://a," },
		"TLS for both":            func(c *bridge.Config) { c.URL = "mqtt://a, wss://b" },
		"it has 33 urls":          func(c *bridge.Config) { c.URL = strings.Repeat("mqtt://a,", 32) + "mqtt://a" },
		"username and password":   func(c *bridge.Config) { c.URL = "mqtt://u:p@broker.example" },
		"tls- settings are for":   func(c *bridge.Config) { c.TLS.CA = "ca.crt" },
		"belong together":         func(c *bridge.Config) { c.URL, c.TLS.Cert = "mqtts://broker.example", "a.crt" },
		"version":                 func(c *bridge.Config) { c.Version = 7 },
		"without a user name":     func(c *bridge.Config) { c.Version, c.PasswordFile = mqtt.V311, "p" },
		"keep-alive":              func(c *bridge.Config) { c.KeepAlive = 1500 * time.Millisecond },
		"keep-alive 18h12m16s":    func(c *bridge.Config) { c.KeepAlive = 65536 * time.Second },
		"queue-full":              func(c *bridge.Config) { c.QueueFull = "burn" },
		"no topics":               func(c *bridge.Config) { c.Topics = nil },
		"a bridge may have 1000":  func(c *bridge.Config) { c.Topics = make([]bridge.Topic, 1001) },
		"client-id":               func(c *bridge.Config) { c.ClientID = strings.Repeat("c", 65536) },
		"username has":            func(c *bridge.Config) { c.Username = "\x00" },
		"no filter":               topic(bridge.Topic{Out: true}),
		"no direction":            topic(bridge.Topic{Filter: "#"}),
		"qos 3":                   topic(bridge.Topic{Filter: "#", Out: true, QoS: 3}),
		"shared":                  topic(bridge.Topic{Filter: "$share/g/#", Out: true}),
		"a prefix none":           topic(bridge.Topic{Filter: "#", Out: true, LocalPrefix: "+/"}),
		"not a valid topic":       topic(bridge.Topic{Filter: "#/a", In: true}),
		`"p#" is not a valid top`: topic(bridge.Topic{Filter: "#", In: true, RemotePrefix: "p"}),
	} {
		c := good
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error %v", want, err)
		}
	}
}
