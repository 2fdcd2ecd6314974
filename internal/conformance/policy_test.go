package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// trusting is an Authenticator for tests: it takes each client for what it says it is.
type trusting struct{}

func (trusting) Connect(p *mqtt.Connect, clientID string, _ *access.Origin, _ <-chan struct{}) access.Verdict {
	id := &access.Identity{ClientID: clientID, Username: string(p.Username), Method: access.Password}
	if id.Username != "" {
		id.Owner = "user:" + id.Username
	}
	return access.Verdict{Identity: id}
}

func (trusting) Reauthenticate(*access.Identity, *mqtt.Auth, *access.Origin, <-chan struct{}) access.Verdict {
	return access.Verdict{Code: mqtt.NotAuthorized}
}

func (trusting) Holds(*access.Identity) bool { return true }

// governed is a server with a policy file, which a test changes.
type governed struct {
	*node
	file string
}

func startGoverned(t *testing.T, policy string, change ...func(*server.Config)) *governed {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	g := &governed{file: file}
	g.write(t, policy)
	g.node = start(t, append([]func(*server.Config){func(c *server.Config) {
		c.Auth, c.Policy = trusting{}, file
		c.ReloadInterval = time.Hour // tests say when
	}}, change...)...)
	return g
}

func (g *governed) write(t *testing.T, policy string) {
	t.Helper()
	if err := os.WriteFile(g.file+".new", []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(g.file+".new", g.file); err != nil {
		t.Fatal(err)
	}
}

// govern puts another policy in force.
func (g *governed) govern(policy string) {
	g.t.Helper()
	g.write(g.t, policy)
	if err := g.Reload(); err != nil {
		g.t.Fatal(err)
	}
}

func as(user string) mqtttest.Option { return mqtttest.Credentials(user, "") }

// everything allows a client of this user name everything.
func everything(user string) string {
	return `
- principals: {usernames: [` + user + `]}
  brokerResources:
  - method: Connect
  - {method: Publish, topics: ["#", ` + invokeTopic + `, "` + previewTopic + `"]}
  - {method: Subscribe, topics: ["#", "$SYS/#"]}
  stateStoreResources: [{method: ReadWrite, keyType: Pattern, keys: ["*"]}]`
}

const machines = `
- principals: {usernames: [press, lathe]}
  brokerResources:
  - method: Connect
  - {method: Publish, topics: ["up/{principal.username}/#", ` + invokeTopic + `]}
  - {method: Subscribe, topics: ["down/{principal.username}/#", all, "answers/{principal.clientId}"]}
  stateStoreResources:
  - {method: ReadWrite, keyType: Pattern, keys: ["{principal.username}:*"]}
  - {method: Read, keyType: String, keys: [shared]}
  - {method: Write, keyType: String, keys: [inbox]}`

func TestPolicyOfTopics(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, "rules:"+everything("admin")+machines)
	mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, as("stranger"))
	mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, as("stranger"), mqtttest.V311())

	all, press := n.connect(as("admin")), n.connect(as("press"), mqtttest.ClientID("p1"))
	all.Subscribe("#", 1)
	for _, c := range []struct {
		m    message
		want mqtt.ReasonCode
	}{
		{message{Topic: "up/press/x"}, mqtt.Success},
		{message{Topic: "up/press"}, mqtt.Success},
		{message{Topic: "up/lathe/x"}, mqtt.NotAuthorized},
		{message{Topic: "down/press/x"}, mqtt.NotAuthorized},
		{message{Topic: "up/press/x", ResponseTopic: new("down/press/answers")}, mqtt.Success},
		{message{Topic: "up/press/x", ResponseTopic: new("down/lathe/answers")}, mqtt.NotAuthorized},
		{message{Topic: "up/press/x", ResponseTopic: new("up/press/x")}, mqtt.NotAuthorized},
	} {
		for _, c.m.QoS = range []byte{1, 2} {
			ack := press.Offer(c.m)
			wantCode(t, c.m.Topic, ack.Code, c.want)
			if c.want != mqtt.Success {
				wantReason(t, c.m.Topic, ack.ReasonString)
				continue
			}
			if got := all.Receive(); got.Topic != c.m.Topic {
				t.Errorf("got %v, want %v", got, c.m)
			}
		}
	}
	all.Quiet()

	for filter, want := range map[string]mqtt.ReasonCode{
		"down/press/#": mqtt.GrantedQoS1, "down/press": mqtt.GrantedQoS1, "down/press/+/x": mqtt.GrantedQoS1, "$share/g/down/press/x": mqtt.GrantedQoS1, "all": mqtt.GrantedQoS1,
		"down/+/x": mqtt.NotAuthorized, "down/#": mqtt.NotAuthorized, "#": mqtt.NotAuthorized, "+": mqtt.NotAuthorized, "$share/g/#": mqtt.NotAuthorized, "all/#": mqtt.NotAuthorized,
		"$SYS/#": mqtt.NotAuthorized, "$SYS/broker/uptime": mqtt.NotAuthorized, "down/lathe/x": mqtt.NotAuthorized,
	} {
		wantCode(t, filter, press.OfferSubscribe(0, sub{Filter: filter, QoS: 1}).Codes[0], want)
	}
	wantCode(t, "$SYS", all.OfferSubscribe(0, sub{Filter: "$SYS/broker/uptime", QoS: 1}).Codes[0], mqtt.GrantedQoS1)

	for _, will := range []message{{Topic: "up/lathe/gone"}, {Topic: "up/press/gone", ResponseTopic: new("down/lathe/x")}} {
		ack := mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, as("press"), mqtttest.Will(will, 0))
		wantReason(t, "CONNACK", ack.ReasonString)
	}
	n.connect(as("press"), mqtttest.Will(message{Topic: "up/press/gone"}, 0)).Drop()
	if got := all.Await("the will", func(p *mqtttest.Packet) bool { return p.Type == mqtt.PUBLISH && p.Publish.Topic == "up/press/gone" }); got == nil {
		t.Error("no will")
	}
}

func TestPolicyOfKeys(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, "rules:"+everything("admin")+machines)
	admin := n.requester(as("admin"))
	for _, key := range []string{"lathe:a", "press:a", "shared", "inbox", "other"} {
		admin.want(ok, "SET", key, "v")
	}
	c := n.connect(as("press"), mqtttest.ClientID("p1"))
	press := &requester{t: t, client: c, topic: invokeTopic, timestamp: "__ts", responses: "answers/p1"}
	press.Subscribe("answers/p1", 1)
	denied := failure("not authorized")
	for _, q := range []struct {
		args []string
		want string
	}{
		{[]string{"GET", "press:a"}, blob("v")}, {[]string{"SET", "press:b", "x"}, ok}, {[]string{"DEL", "press:b"}, ":1\r\n"},
		{[]string{"GET", "lathe:a"}, denied}, {[]string{"GET", "lathe:none"}, denied}, {[]string{"SET", "lathe:a", "x"}, denied},
		{[]string{"GET", "shared"}, blob("v")}, {[]string{"KEYNOTIFY", "shared"}, ok}, {[]string{"LOAD", "shared", "m"}, "*3\r\n:0\r\n$1\r\nv\r\n$-1\r\n"},
		{[]string{"SET", "shared", "x"}, denied}, {[]string{"DEL", "shared"}, denied}, {[]string{"VDEL", "shared", "v"}, denied},
		{[]string{"STORE", "shared", "s", "m", "-"}, denied}, {[]string{"DONE", "shared", "m"}, denied},
		{[]string{"GET", "inbox"}, denied}, {[]string{"KEYNOTIFY", "inbox"}, denied}, {[]string{"LOAD", "inbox", "m"}, denied},
		{[]string{"SET", "inbox", "x"}, ok}, {[]string{"DONE", "inbox", "m"}, ":0\r\n"}, {[]string{"STORE", "inbox", "s", "m", "-"}, ":-1\r\n"},
		{[]string{"SCAN", "*"}, "*1\r\n*2\r\n" + blob("press:a") + blob("shared")},
		{[]string{"SCAN", "lathe*"}, "*1\r\n*0\r\n"},
	} {
		if got := press.do(q.args...).Payload; got != q.want {
			t.Errorf("%q: got %q, want %q", q.args, got, q.want)
		}
	}

	// The Response Topic must be one that the client may subscribe to.
	m := press.request(command("GET", "press:a"))
	m.ResponseTopic = new("answers/p2")
	ack := press.Offer(m)
	wantCode(t, "PUBACK", ack.Code, mqtt.NotAuthorized)
	wantReason(t, "PUBACK", ack.ReasonString)
	// The other dialect's topic is not allowed.
	m.Topic = previewTopic
	wantCode(t, "PUBACK", press.Offer(m).Code, mqtt.NotAuthorized)
	press.Quiet()
}

// A client that may not read 2,500 keys before and behind its own gets what it would get if they weren't
// there: no page more, and no key in a token.
func TestScanIsTheSameWithKeysThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	pages := func(hidden int) (pages []string) {
		n := startGoverned(t, "rules:"+everything("admin")+machines)
		admin := n.requester(as("admin"))
		for i := range hidden {
			admin.want(ok, "SET", fmt.Sprintf("h%d", i), "v")
			admin.want(ok, "SET", fmt.Sprintf("z%d", i), "v")
		}
		for i := range 1200 { // more than a page
			admin.want(ok, "SET", fmt.Sprintf("press:%d", i), "v")
		}
		c := n.connect(as("press"), mqtttest.ClientID("p1"))
		press := &requester{t: t, client: c, topic: invokeTopic, timestamp: "__ts", responses: "answers/p1"}
		press.Subscribe("answers/p1", 1)
		args := []string{"SCAN", "*"}
		for {
			page := press.do(args...).Payload
			pages = append(pages, page)
			if !strings.HasPrefix(page, "*2\r\n") {
				return pages
			}
			lines := strings.Split(page, "\r\n")
			args = []string{"SCAN", "*", lines[len(lines)-2]}
		}
	}
	without, with := pages(0), pages(1250)
	if len(without) < 2 || !slices.Equal(without, with) {
		t.Errorf("%d pages with hidden keys, %d without, or other ones", len(with), len(without))
	}
}

// After a reload clients that have lost something are told, and all others go on.
func TestPolicyReload(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, "rules:"+everything("admin")+machines+everything("guest"))
	admin := n.requester(as("admin"))
	press, lathe := n.connect(as("press"), mqtttest.Persistent("p1")), n.connect(as("lathe"))
	press.Subscribe("down/press/x", 1)
	press.Subscribe("all", 1)
	lathe.Subscribe("all", 1)
	guest, old := n.connect(as("guest")), n.connect(as("guest"), mqtttest.V311())

	n.govern("rules:" + everything("admin") + strings.Replace(machines, `"down/{principal.username}/#", `, "", 1))
	guest.AwaitDisconnect(mqtt.NotAuthorized)
	old.ExpectClosed()
	mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, as("guest"))
	lost := press.AwaitDisconnect(mqtt.NotAuthorized)
	wantReason(t, "DISCONNECT", lost.Disconnect.ReasonString)
	lathe.Ping()

	// The session goes on with what is left.
	press = n.connect(as("press"), mqtttest.Persistent("p1"))
	wantCode(t, "PUBACK", admin.Offer(message{Topic: "down/press/x", QoS: 1}).Code, mqtt.NoMatchingSubscribers)
	admin.Publish(message{Topic: "all", Payload: "1", QoS: 1})
	for _, c := range []*client{press, lathe} {
		if got := c.Receive(); got.Topic != "all" {
			t.Errorf("got %v", got)
		}
	}

	// A file with a mistake changes nothing.
	n.write(t, "rules:\n- principls: {}\n")
	err := n.Reload()
	if err == nil || !strings.Contains(err.Error(), n.file+`:2: unknown key "principls"`) {
		t.Errorf("got %v", err)
	}
	press.Ping()
	lathe.Ping()
	if err := os.Remove(n.file); err != nil {
		t.Fatal(err)
	}
	if err := n.Reload(); err == nil {
		t.Error("a missing file was read")
	}
	lathe.Ping()
	mqtttest.Refused(t, n.Addr, mqtt.NotAuthorized, as("guest"))
}

// A watch ends when its key may not be read any more, and its client learns of it.
func TestPolicyReloadEndsWatches(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, "rules:"+everything("admin")+everything("a")+everything("b"))
	admin, a, b := n.requester(as("admin")), n.requester(as("a")), n.requester(as("b"))
	a.want(ok, "KEYNOTIFY", "secret")
	b.want(ok, "KEYNOTIFY", "open")
	n.govern("rules:" + everything("admin") + strings.ReplaceAll(everything("a")+everything("b"), `keys: ["*"]`, `keys: ["o*"]`))
	a.AwaitDisconnect(mqtt.NotAuthorized)
	admin.want(ok, "SET", "secret", "v")
	admin.want(ok, "SET", "open", "v")
	if got := b.Receive(); !strings.Contains(got.Payload, "NOTIFY") {
		t.Errorf("got %v", got)
	}
	b.Quiet()
}

// The file is looked at now and then, and read when it has changed.
func TestPolicyIsReadWhenItsFileChanges(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, "rules:"+everything("admin")+everything("guest"), func(c *server.Config) { c.ReloadInterval = 5 * time.Millisecond })
	admin, guest := n.connect(as("admin")), n.connect(as("guest"))
	n.write(t, "rules:"+everything("admin"))
	guest.AwaitDisconnect(mqtt.NotAuthorized)
	admin.Ping()
}

// What waits for a client that is away is judged when it is back, and so are its
// subscriptions.
func TestPolicyOfASessionThatWasAway(t *testing.T) {
	t.Parallel()
	policy := func(topics string) string {
		return "rules:" + everything("admin") + `
- principals: {usernames: [press]}
  brokerResources: [{method: Connect}, {method: Subscribe, topics: [` + topics + `]}]`
	}
	n := startGoverned(t, policy("a, b"))
	admin := n.connect(as("admin"))
	press := n.connect(as("press"), mqtttest.Persistent("p"))
	press.Subscribe("a", 1)
	press.Subscribe("b", 1)
	press.Disconnect()
	n.govern(policy("a"))
	for _, topic := range []string{"a", "b", "a"} {
		admin.Publish(message{Topic: topic, QoS: 1})
	}
	press = n.connect(as("press"), mqtttest.Persistent("p"), mqtttest.HoldAcks()) // it may get the messages before it learns
	press.AwaitDisconnect(mqtt.NotAuthorized)
	press = n.connect(as("press"), mqtttest.Persistent("p"))
	for _, m := range press.ReceiveN(2) {
		if m.Topic != "a" {
			t.Errorf("got %v", m)
		}
	}
	press.Quiet()
	wantCode(t, "PUBACK", admin.Offer(message{Topic: "b", QoS: 1}).Code, mqtt.NoMatchingSubscribers)
}

// A will is judged again when it is due: by the policy that is in force then, and by who
// left it, also after a restart.
func TestPolicyOfAWillThatIsDue(t *testing.T) {
	t.Parallel()
	policy := func(users string) string {
		return "rules:" + everything("admin") + `
- principals: {usernames: [` + users + `]}
  brokerResources: [{method: Connect}, {method: Publish, topics: ["wills/{principal.username}"]}]
- principals: {usernames: [a, b, c]}
  brokerResources: [{method: Connect}]`
	}
	const delay = 5 // seconds, in which there is another policy and a listener also on a busy machine
	n := startGoverned(t, policy("a, b, c"))
	for _, user := range []string{"a", "b", "c"} {
		n.connect(as(user), mqtttest.Persistent("client-"+user), mqtttest.Will(message{Topic: "wills/" + user, QoS: 1}, delay)).Drop()
	}
	n.govern(policy("b, c"))
	listener := n.connect(as("admin"), mqtttest.Persistent("listener"))
	listener.Subscribe("wills/#", 1)
	want := map[string]bool{"wills/b": true, "wills/c": true}
	for _, m := range listener.ReceiveN(2) {
		if !want[m.Topic] {
			t.Errorf("got %v", m)
		}
		delete(want, m.Topic)
	}
	listener.Quiet()

	for _, user := range []string{"b", "c"} {
		n.connect(as(user), mqtttest.Persistent("client-"+user), mqtttest.Will(message{Topic: "wills/" + user, QoS: 1}, delay)).Drop()
	}
	listener.Disconnect()
	n.write(t, policy("c"))
	n.Restart()
	listener = n.connect(as("admin"), mqtttest.Persistent("listener"))
	if got := listener.Receive(); got.Topic != "wills/c" {
		t.Errorf("got %v", got)
	}
	listener.Quiet()
}

// Bounds of a client are those of its principal, whatever client IDs it uses; another
// principal at the same address has its own.
func TestBoundsOfAPrincipal(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) {
		c.Auth, c.MaxClientKeys, c.Limits.MaxSessionsPerPrincipal = trusting{}, 2, 2
	})
	one, two := n.requester(as("press")), n.requester(as("press"))
	one.want(ok, "SET", "a", "v")
	two.want(ok, "SET", "b", "v")
	for _, r := range []*requester{one, two} {
		r.want(failure("the quota has been exceeded"), "SET", "c", "v")
	}
	mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, as("press"))

	lathe := n.requester(as("lathe"))
	lathe.want(ok, "SET", "c", "v")
	n.connect(as("lathe"))
	mqtttest.Refused(t, n.Addr, mqtt.QuotaExceeded, as("lathe"))
	one.Disconnect()
	one.AwaitEnd()
	n.connect(as("press"))
}

// What a connection remembers of a policy ends with it: after Use, the next request is judged
// by the new policy, whether that allows less or more.
func TestAnotherPolicyAppliesToTheNextRequest(t *testing.T) {
	t.Parallel()
	rules := func(without string) *policy.Policy {
		text := "rules: [{brokerResources: [{method: Connect}"
		for resource, part := range map[string]string{
			"request": "{method: Publish, topics: [" + invokeTopic + "]}",
			"answer":  "{method: Publish, topics: [answers/all]}",
			"listen":  "{method: Subscribe, topics: [answers/all]}",
		} {
			if resource != without {
				text += ", " + part
			}
		}
		text += "]"
		if without != "key" {
			text += ", stateStoreResources: [{method: ReadWrite, keyType: String, keys: [k]}]"
		}
		p, err := policy.Parse("policy.yaml", []byte(text+"}]"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all := rules("")
	guard := policy.NewGuard(all)
	n := start(t, func(c *server.Config) { c.May = guard })
	listener := n.connect()
	listener.Subscribe("answers/all", 1)
	r := &requester{t: t, client: n.connect(), topic: invokeTopic, timestamp: "__ts", responses: "answers/all"}
	r.SubscribeWith(0, sub{Filter: r.responses, QoS: 1})
	r.want(ok, "SET", "k", "v")
	listener.Receive()

	for _, without := range []string{"request", "answer", "listen", "key"} {
		for range 2 { // the second time it is remembered
			r.want(blob("v"), "GET", "k")
			listener.Receive()
		}
		guard.Use(rules(without))
		switch without {
		case "answer":
			r.want(blob("v"), "GET", "k")
			listener.Quiet()
		case "key":
			r.want(failure("not authorized"), "GET", "k")
			listener.Receive()
		default:
			for range 2 {
				wantCode(t, "a request without "+without, r.Offer(r.request(command("GET", "k"))).Code, mqtt.NotAuthorized)
			}
			r.Quiet()
			listener.Quiet()
		}
		guard.Use(all)
	}
}
