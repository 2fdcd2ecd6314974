package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// administer runs a session command on the data directory of a server.
func administer(t *testing.T, data, stdin string, args ...string) result {
	t.Helper()
	return start(t, exec.Command(binary, append([]string{"session", "--data", data}, args...)...), strings.NewReader(stdin))
}

func TestSessionList(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	addr := d.Addr
	administer(t, data, "", "list").want(t, "no sessions", 0, "", "")

	away := mqtttest.Connect(t, addr, mqtttest.Persistent("away one"))
	away.Subscribe("orders/#", 1)
	away.Disconnect()
	here := mqtttest.Connect(t, addr, mqtttest.ClientID("here"))
	here.Subscribe("a", 0)
	here.Subscribe("b", 0)
	here.Publish(mqtttest.Message{Topic: "orders/1", Payload: "twelve bytes", QoS: 1})

	list := administer(t, data, "", "list")
	want := regexp.MustCompile(`^"away one" +away +\S+Z - +1 +1 +\d+ +3600\nhere +connected \S+Z 127\.0\.0\.1:\d+ +2 +0 +0 +0\n$`)
	if list.code != 0 || list.err != "" || !want.MatchString(list.out) {
		t.Errorf("status %d, errors %q, list\n%s\nwant %s", list.code, list.err, list.out, want)
	}
	administer(t, data, "", "list", "--ids").want(t, "IDs", 0, "away one\nhere\n", "")
	administer(t, data, "", "list", "--ids", "-0", "--away").want(t, "IDs with NUL", 0, "away one\x00", "")
	administer(t, data, "", "list", "--ids", "--connected").want(t, "connected", 0, "here\n", "")

	principals := administer(t, data, "", "list", "--by-principal")
	want = regexp.MustCompile(`^127\.0\.0\.1 +1 +1 +2 +0 +0\n- +1 +0 +1 +1 +\d+\n$`)
	if principals.code != 0 || principals.err != "" || !want.MatchString(principals.out) {
		t.Errorf("status %d, errors %q, principals\n%s\nwant %s", principals.code, principals.err, principals.out, want)
	}

	var session map[string]any
	if err := json.Unmarshal([]byte(administer(t, data, "", "list", "--json", "--away").out), &session); err != nil {
		t.Fatal(err)
	}
	if session["ClientID"] != "away one" || session["Queued"] != 1.0 || session["Expiry"] != 3600.0 || session["Connected"] != false {
		t.Errorf("as JSON it is %v", session)
	}
}

func TestSessionKick(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	addr := d.Addr
	c := mqtttest.Connect(t, addr, mqtttest.Persistent("sensor-7"))
	c.Subscribe("a", 1)
	administer(t, data, "", "kick", "sensor-7").want(t, "kick", 0, "", "")
	c.ExpectDisconnect(mqtt.AdministrativeAction)
	d.awaitLog(`msg="an operator acts on a session" action=kick client=sensor-7\n`)
	d.awaitLog(`msg="client disconnected" client=sensor-7 .* by=server code="Administrative action" reason="an operator ended the connection"\n`)

	administer(t, data, "", "kick", "sensor-7").want(t, "kick again", 1, "", `not connected: "sensor-7"`)
	administer(t, data, "", "kick", "x", "y", "z").want(t, "kick strangers", 1, "", `not connected: "x" and 2 more`)
	if back := mqtttest.Connect(t, addr, mqtttest.Persistent("sensor-7")); !back.Connack.SessionPresent {
		t.Error("the session did not outlive the kick")
	}
}

func TestSessionDelete(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	addr := d.Addr
	connected := mqtttest.Connect(t, addr, mqtttest.Persistent("connected"))
	away := mqtttest.Connect(t, addr, mqtttest.Persistent("away"))
	away.Subscribe("a", 1)
	away.Disconnect()
	brief := mqtttest.Connect(t, addr, mqtttest.ClientID("brief"))

	administer(t, data, "", "delete", "connected", "away", "brief").want(t, "delete", 0, "", "")
	connected.ExpectDisconnect(mqtt.AdministrativeAction)
	brief.ExpectDisconnect(mqtt.AdministrativeAction)
	administer(t, data, "", "list").want(t, "list afterwards", 0, "", "")
	administer(t, data, "", "delete", "away").want(t, "delete again", 1, "", `no such session: "away"`)

	// For good: not only until the next start.
	d.Kill()
	d = serveIn(t, data)
	if back := mqtttest.Connect(t, d.Addr, mqtttest.Persistent("away")); back.Connack.SessionPresent {
		t.Error("the session is back after a restart")
	}
}

// An operator ends more sessions than one request has room for, from a list.
func TestManySessions(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	const most = 520 // more than one request deletes
	d := serveIn(t, data)
	addr := d.Addr
	for i := range most {
		mqtttest.Connect(t, addr, mqtttest.Persistent(fmt.Sprintf("squatter-%d", i))).Drop()
	}

	ids := administer(t, data, "", "list", "--ids")
	if n := strings.Count(ids.out, "squatter-"); ids.code != 0 || n != most {
		t.Fatalf("status %d, errors %q, %d sessions", ids.code, ids.err, n)
	}
	administer(t, data, ids.out, "delete", "--stdin").want(t, "delete all", 0, "", "")
	administer(t, data, "", "list").want(t, "list afterwards", 0, "", "")
	mqtttest.Connect(t, addr, mqtttest.Persistent("welcome"))
}

func TestSessionErrors(t *testing.T) {
	t.Parallel()
	nowhere := t.TempDir()
	for _, test := range []struct{ args, want string }{
		{"list", "holdfast session list: no server can be reached through " + nowhere + "/holdfast.sock: is --data the directory of a server that is running?"},
		{"kick a", "no server can be reached"},
		{"kick", "no client is given; usage: holdfast session kick [flags] CLIENT..."},
		{"delete --stdin a", "--stdin and CLIENT exclude each other"},
		{"lst", `holdfast session: unknown command "lst"; did you mean list?; see holdfast session --help`},
		{"list a", `holdfast session list: unexpected argument "a"; usage: holdfast session list [flags]`},
	} {
		administer(t, nowhere, "", strings.Fields(test.args)...).want(t, test.args, 2, "", test.want)
	}
}
