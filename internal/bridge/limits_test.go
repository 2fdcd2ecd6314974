package bridge_test

import (
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// start runs a server with one bridge.
func start(t *testing.T, c bridge.Config, change ...func(*server.Config)) (*testserver.Server, *logs.Text) {
	t.Helper()
	log := new(logs.Text)
	s := testserver.Start(t, append(change, func(s *server.Config) {
		s.Bridges = []bridge.Config{c}
		s.SysInterval = 10 * time.Millisecond
		s.Logger = slog.New(slog.NewTextHandler(log, nil))
	})...)
	return s, log
}

// awaitLog waits until the log has a text.
func awaitLog(t *testing.T, log *logs.Text, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(log.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%q is not in the log:\n%s", text, log.String())
		}
	}
}

// Three brokers in a ring, each with a bridge to the next one for all topics: a message comes
// back to its origin once, and goes no further.
func TestARingEnds(t *testing.T) {
	t.Parallel()
	addrs := []string{testserver.FreeAddress(), testserver.FreeAddress(), testserver.FreeAddress()}
	var ring []*testserver.Server
	for i, addr := range addrs {
		s, _ := start(t, bridge.Config{
			Name: "next", URL: "mqtt://" + addrs[(i+1)%3], ClientID: "from-" + addr,
			Topics: []bridge.Topic{{Filter: "#", Out: true, QoS: 1}},
		}, func(c *server.Config) { c.Listen = []string{addr} })
		ring = append(ring, s)
	}
	for _, s := range ring {
		awaitConnected(t, s.Addr, "next")
	}
	c := mqtttest.Connect(t, ring[0].Addr)
	c.Subscribe("#", 1)
	for _, payload := range []string{"first", "second"} {
		c.Publish(mqtttest.Message{Topic: "a", Payload: payload, QoS: 1})
		for _, via := range []int{0, 3} { // what c published, and what came around
			m := awaitMessage(c)
			if m.Payload != payload || len(m.User) != via {
				t.Fatalf("%v, want %s with %d names of brokers", m, payload, via)
			}
		}
	}
}

// A bridge whose URL is that of its own broker says so, passes nothing, and nothing waits for it.
func TestBridgeToItself(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"mqtt", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			for _, version := range versions {
				addr := testserver.FreeAddress()
				password := filepath.Join(t.TempDir(), "password")
				s, log := start(t, bridge.Config{
					Name: "self", URL: scheme + "://" + addr, Version: version, ClientID: "remote", Username: "u", PasswordFile: password,
					Topics: []bridge.Topic{{Filter: "a/#", Out: true, QoS: 1, RemotePrefix: "b/"}},
				}, func(c *server.Config) { c.Listen = []string{scheme + "://" + addr, "127.0.0.1:0"} })
				c := mqtttest.Connect(t, s.Addrs()[len(s.Addrs())-1].String())
				// Until it can connect, messages wait for what may be another broker.
				awaitLog(t, log, "password-file")
				c.Publish(mqtttest.Message{Topic: "a/0", QoS: 1})
				if list := sessions(t, s); !strings.Contains(list, "bridge/self") {
					t.Errorf("the bridge has no session:\n%s", list)
				}
				write(t, password, "secret")
				awaitLog(t, log, "is this broker itself")
				c.Subscribe("b/#", 1)
				nobodyWants(t, c, "a/1")
				c.Publish(mqtttest.Message{Topic: "b/end", QoS: 1})
				if m := awaitMessage(c); m.Topic != "b/end" {
					t.Error(m)
				}
				if list := sessions(t, s); strings.Contains(list, "bridge/self") {
					t.Errorf("the bridge has a session:\n%s", list)
				}
				// An attempt to connect makes the session of the remote client, and ends it.
				for end := time.Now().Add(time.Minute); strings.Contains(sessions(t, s), "remote"); {
					if time.Now().After(end) {
						t.Fatalf("the bridge's remote client has a session:\n%s", sessions(t, s))
					}
				}
				awaitReason(t, c, "self", "itself")
				if found, err := server.Doctor(t.Context(), s.Config.DataDir); err != nil || !slices.ContainsFunc(found, func(f doctor.Finding) bool {
					return f.Check == "bridges" && strings.Contains(f.Found, "leads to this server itself")
				}) {
					t.Errorf("the doctor does not name the bridge: %+v, %v", found, err)
				}
			}
		})
	}
}

// A bridge that its own broker refuses, for its password, is seen to lead there, and nothing waits for it.
func TestBridgeToItselfIsRefused(t *testing.T) {
	t.Parallel()
	dir, addr := t.TempDir(), testserver.FreeAddress()
	for _, user := range []string{"alice", "bridge"} {
		if err := passwd.Set(dir+"/users", user, []byte("secret"), passwd.MinIterations); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir+"/password", "wrong")
	s, log := start(t, bridge.Config{
		Name: "self", URL: "mqtt://" + addr, ClientID: "remote", Username: "bridge", PasswordFile: dir + "/password",
		Topics: []bridge.Topic{{Filter: "a/#", Out: true, QoS: 1}},
	}, func(c *server.Config) { c.Listen, c.Login.PasswordFile = []string{addr}, dir+"/users" })
	awaitLog(t, log, "is this broker itself")
	awaitLog(t, log, "it answers CONNACK")
	c := mqtttest.Connect(t, addr, mqtttest.Credentials("alice", "secret"))
	awaitReason(t, c, "self", "itself")
	nobodyWants(t, c, "a/1")
	if list := sessions(t, s); strings.Contains(list, "bridge/self") {
		t.Errorf("the bridge has a session:\n%s", list)
	}
}

// nobodyWants publishes to a topic to which no session subscribes.
func nobodyWants(t *testing.T, c *mqtttest.Client, topic string) {
	t.Helper()
	if ack := c.Offer(mqtttest.Message{Topic: topic, QoS: 1}); ack.Code != mqtt.NoMatchingSubscribers {
		t.Errorf("a message to %s: %v, and no session should subscribe to it", topic, ack.Code)
	}
}

// sessions is what holdfast session list prints.
func sessions(t *testing.T, s *testserver.Server) string {
	t.Helper()
	list, err := exec.Command(testserver.Binary(), "session", "list", "--data", s.Config.DataDir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, list)
	}
	return string(list)
}

// awaitReason waits until a server says why its bridge is not connected.
func awaitReason(t *testing.T, c *mqtttest.Client, name, reason string) {
	t.Helper()
	subscribe(c, "$SYS/broker/connection/"+name+"/reason", 0)
	c.Await("the reason "+reason, func(p *mqtttest.Packet) bool { return p.Publish != nil && p.Publish.Payload == reason })
}

// What waits for another broker stays while the bridge's URL leads to its own broker, nothing is added,
// and it passes when the URL leads to the other broker again.
func TestMessagesOfBeforeOutliveABridgeToItself(t *testing.T) {
	t.Parallel()
	own, farAddr := testserver.FreeAddress(), testserver.FreeAddress()
	c := bridge.Config{Name: "plant", URL: "mqtt://" + farAddr, Topics: []bridge.Topic{{Filter: "up/#", Out: true, QoS: 1}}}
	s, log := start(t, c, func(c *server.Config) { c.Listen = []string{own} })
	awaitLog(t, log, "a bridge is not connected") // and its session has begun
	client := mqtttest.Connect(t, own)
	client.Publish(mqtttest.Message{Topic: "up/1", Payload: "before", QoS: 1})
	waits := regexp.MustCompile(`(?m)^bridge/plant +away +\S+ - +1 +1 `)
	if list := sessions(t, s); !waits.MatchString(list) {
		t.Fatalf("no message waits for the bridge:\n%s", list)
	}

	c.URL = "mqtt://" + own
	s.Config.Bridges = []bridge.Config{c}
	s.Restart()
	awaitLog(t, log, "is this broker itself")
	client = mqtttest.Connect(t, own)
	nobodyWants(t, client, "up/2")
	if list := sessions(t, s); !regexp.MustCompile(`(?m)^bridge/plant +away +\S+ - +0 +1 `).MatchString(list) {
		t.Errorf("want the session of before with its message, and no subscription:\n%s", list)
	}

	far := testserver.Run(t, "--listen", farAddr)
	atFar := mqtttest.Connect(t, far.Addr)
	atFar.Subscribe("up/#", 1)
	c.URL = "mqtt://" + farAddr
	s.Config.Bridges = []bridge.Config{c}
	s.Restart()
	if m := awaitMessage(atFar); m.Payload != "before" {
		t.Error(m)
	}
}

// Messages that one of the brokers would not take are dropped, and those behind them pass.
func TestWhatTheOthersDoNotTake(t *testing.T) {
	t.Parallel()
	far := testserver.Start(t, func(c *server.Config) { c.Limits.MaxPacketSize = 2000 })
	near, log := start(t, bridge.Config{Name: "plant", URL: "mqtt://" + far.Addr, Topics: []bridge.Topic{
		{Filter: "up/#", Out: true, QoS: 1}, {Filter: "down/#", In: true, QoS: 1}, {Filter: "#", In: true, QoS: 1, RemotePrefix: "as/", LocalPrefix: ""},
	}}, func(c *server.Config) {
		c.Limits.MaxTopicLevels, c.Limits.MaxUserProperties = 5, 3
		c.Admin = "127.0.0.1:0"
	})
	awaitConnected(t, near.Addr, "plant")
	atNear, atFar := mqtttest.Connect(t, near.Addr), mqtttest.Connect(t, far.Addr)
	atNear.Subscribe("#", 1)
	atFar.Subscribe("up/#", 1)

	atNear.Publish(mqtttest.Message{Topic: "up/large", Payload: strings.Repeat("x", 2000), QoS: 1})
	atNear.Publish(mqtttest.Message{Topic: "up/small", QoS: 1})
	if m := awaitMessage(atFar); m.Topic != "up/small" {
		t.Error(m)
	}
	atNear.Collect()
	for topic, reason := range map[string]string{
		"down/2/3/4/5/6": "its topic has 6 levels",
		"as/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke": "its topic is one of the state store",
		"as/$SYS/broker/uptime": "its topic is one of the state store or of the server's own figures",
	} {
		for qos := range byte(3) {
			atFar.Publish(mqtttest.Message{Topic: topic, QoS: qos})
		}
		awaitLog(t, log, reason)
	}
	atFar.Publish(mqtttest.Message{Topic: "down/users", QoS: 1, User: [][2]string{{"a", ""}, {"b", ""}, {"c", ""}}})
	awaitLog(t, log, "it has 3 user properties")
	atFar.Publish(mqtttest.Message{Topic: "down/end", QoS: 1})
	if m := awaitMessage(atNear); m.Topic != "down/end" {
		t.Error(m)
	}

	// The metrics count them.
	answer, err := http.Get("http://" + near.AdminAddr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	metrics, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`holdfast_bridge_connected{bridge="plant"} 1`, `holdfast_bridge_connects_total{bridge="plant"} 1`,
		`holdfast_bridge_messages_total{bridge="plant",direction="out",outcome="passed"} 1`,
		`holdfast_bridge_messages_total{bridge="plant",direction="in",outcome="passed"} 1`,
		`holdfast_bridge_messages_total{bridge="plant",direction="in",outcome="dropped"} 10`,
	} {
		if !strings.Contains(string(metrics), "\n"+line+"\n") {
			t.Errorf("%s is not in the metrics", line)
		}
	}
}

// A bridge's client at this broker needs no password, and is for the policy the user
// bridge/NAME. No other client gets its session.
func TestLoginsAndPolicy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir+"/policy.yaml", `rules:
  - principals: {usernames: [bridge/plant]}
    brokerResources:
      - {method: Connect}
      - {method: Subscribe, topics: ["up/#"]}
      - {method: Publish, topics: ["down/good"]}
  - principals: {usernames: [alice, bridge]}
    brokerResources:
      - {method: Connect}
      - {method: Publish, topics: ["#"]}
      - {method: Subscribe, topics: ["#", "$SYS/#"]}
`)
	for _, user := range []string{"alice", "bridge"} {
		if err := passwd.Set(dir+"/users", user, []byte("secret"), passwd.MinIterations); err != nil {
			t.Fatal(err)
		}
	}
	far := testserver.Start(t)
	near, log := start(t, bridge.Config{Name: "plant", URL: "mqtt://" + far.Addr, Topics: []bridge.Topic{
		{Filter: "up/#", Out: true, QoS: 1}, {Filter: "secret/#", Out: true, QoS: 1}, {Filter: "down/#", In: true, QoS: 1},
	}}, func(c *server.Config) { c.Login.PasswordFile, c.Policy = dir+"/users", dir+"/policy.yaml" })
	awaitLog(t, log, "filter=secret/#")
	awaitLog(t, log, "a bridge is connected")
	atNear := mqtttest.Connect(t, near.Addr, mqtttest.Credentials("alice", "secret"))
	atFar := mqtttest.Connect(t, far.Addr)
	atNear.Subscribe("down/#", 1)
	atFar.Subscribe("#", 1)
	atNear.Publish(mqtttest.Message{Topic: "secret/1", QoS: 1})
	atNear.Publish(mqtttest.Message{Topic: "up/1", QoS: 1})
	if m := awaitMessage(atFar); m.Topic != "up/1" {
		t.Error(m)
	}
	atFar.Publish(mqtttest.Message{Topic: "down/bad", QoS: 1})
	awaitLog(t, log, "a broker refuses a message of a bridge")
	atFar.Publish(mqtttest.Message{Topic: "down/good", QoS: 1})
	if m := awaitMessage(atNear); m.Topic != "down/good" {
		t.Error(m)
	}
	mqtttest.Refused(t, near.Addr, mqtt.NotAuthorized, mqtttest.Credentials("bridge", "secret"), mqtttest.ClientID("bridge/plant"), mqtttest.Resume())
}

// A bridge shows the other broker a certificate, a user name and a password, in both versions
// of MQTT, and checks that broker's certificate. The password is read again at each attempt.
func TestTLSAndPassword(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	dir := t.TempDir()
	if err := passwd.Set(dir+"/users", "gateway", []byte("secret"), passwd.MinIterations); err != nil {
		t.Fatal(err)
	}
	files := a.Mutual("server")
	a.Client("gateway")
	far := testserver.Start(t, func(c *server.Config) {
		c.Listen, c.TLS, c.Login.PasswordFile = []string{"mqtts://127.0.0.1:0", "wss://127.0.0.1:0"}, files, dir+"/users"
		c.Login.LoginBurst = 1000 // the bridges come from one address
	})
	for _, version := range versions {
		for _, scheme := range []string{"mqtts", "wss"} {
			t.Run(scheme+" "+version.String(), func(t *testing.T) {
				t.Parallel()
				c := bridge.Config{
					Name: "plant", URL: "mqtts://" + far.Addr, Version: version, ClientID: "of-" + scheme + version.String(), Username: "gateway", PasswordFile: filepath.Join(t.TempDir(), "password"),
					TLS: bridge.TLS{CA: files.ClientCA, Cert: a.File("gateway.crt"), Key: a.File("gateway.key")}, Topics: []bridge.Topic{{Filter: scheme + version.String() + "/#", Out: true, QoS: 2}},
				}
				if scheme == "wss" {
					c.URL = "wss://" + far.WebSocketAddrs()[0].String() + "/mqtt"
				}
				write(t, c.PasswordFile, "wrong\n")
				near, log := start(t, c)
				awaitLog(t, log, "CONNACK Bad User Name or Password (0x86)")
				write(t, c.PasswordFile, "secret\r\nand a comment")
				awaitConnected(t, near.Addr, "plant")
			})
		}
	}
	t.Run("another authority", func(t *testing.T) {
		t.Parallel()
		other := certstest.New(t).Mutual("server")
		_, log := start(t, bridge.Config{Name: "plant", URL: "mqtts://" + far.Addr, TLS: bridge.TLS{CA: other.ClientCA}, Topics: []bridge.Topic{{Filter: "#", Out: true}}})
		awaitLog(t, log, "certificate signed by unknown authority")
	})
}
