package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"holdfast/internal/mqtt"
	"holdfast/internal/mqtttest"
)

// operate runs a session command on the data directory of a server.
func operate(t *testing.T, data, stdin string, args ...string) result {
	t.Helper()
	return start(t, exec.Command(binary, append([]string{"session", "--data", data}, args...)...), strings.NewReader(stdin))
}

func TestSessionList(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	addr := "127.0.0.1:" + d.port
	operate(t, data, "", "list").want(t, "no sessions", 0, "", "")

	away := mqtttest.Connect(t, addr, mqtttest.Persistent("away one"))
	away.Subscribe("orders/#", 1)
	away.Disconnect()
	here := mqtttest.Connect(t, addr, mqtttest.ClientID("here"))
	here.Subscribe("a", 0)
	here.Subscribe("b", 0)
	here.Publish(mqtttest.Message{Topic: "orders/1", Payload: "twelve bytes", QoS: 1})

	list := operate(t, data, "", "list")
	want := regexp.MustCompile(`^"away one" +away +\S+Z - +1 +1 +\d+ +3600\nhere +connected \S+Z 127\.0\.0\.1:\d+ +2 +0 +0 +0\n$`)
	if list.code != 0 || list.err != "" || !want.MatchString(list.out) {
		t.Errorf("status %d, errors %q, list\n%s\nwant %s", list.code, list.err, list.out, want)
	}
	operate(t, data, "", "list", "--ids").want(t, "IDs", 0, "away one\nhere\n", "")
	operate(t, data, "", "list", "--ids", "-0", "--away").want(t, "IDs with NUL", 0, "away one\x00", "")
	operate(t, data, "", "list", "--ids", "--connected").want(t, "connected", 0, "here\n", "")

	var session map[string]any
	if err := json.Unmarshal([]byte(operate(t, data, "", "list", "--json", "--away").out), &session); err != nil {
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
	addr := "127.0.0.1:" + d.port
	c := mqtttest.Connect(t, addr, mqtttest.Persistent("sensor-7"))
	c.Subscribe("a", 1)
	operate(t, data, "", "kick", "sensor-7").want(t, "kick", 0, "", "")
	c.ExpectDisconnect(mqtt.AdministrativeAction)
	d.awaitLog(`msg="an operator acts on a session" action=kick client=sensor-7\n`)
	d.awaitLog(`msg="client disconnected" client=sensor-7 .* by=server code="Administrative action" reason="an operator ended the connection"\n`)

	operate(t, data, "", "kick", "sensor-7").want(t, "kick again", 1, "", `not connected: "sensor-7"`)
	operate(t, data, "", "kick", "x", "y", "z").want(t, "kick strangers", 1, "", `not connected: "x" and 2 more`)
	if back := mqtttest.Connect(t, addr, mqtttest.Persistent("sensor-7")); !back.Connack.SessionPresent {
		t.Error("the session did not outlive the kick")
	}
}

func TestSessionDelete(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	addr := "127.0.0.1:" + d.port
	connected := mqtttest.Connect(t, addr, mqtttest.Persistent("connected"))
	away := mqtttest.Connect(t, addr, mqtttest.Persistent("away"))
	away.Subscribe("a", 1)
	away.Disconnect()
	brief := mqtttest.Connect(t, addr, mqtttest.ClientID("brief"))

	operate(t, data, "", "delete", "connected", "away", "brief").want(t, "delete", 0, "", "")
	connected.ExpectDisconnect(mqtt.AdministrativeAction)
	brief.ExpectDisconnect(mqtt.AdministrativeAction)
	operate(t, data, "", "list").want(t, "list afterwards", 0, "", "")
	operate(t, data, "", "delete", "away").want(t, "delete again", 1, "", `no such session: "away"`)

	// For good: not only until the next start.
	d.stop(9)
	d = serveIn(t, data)
	if back := mqtttest.Connect(t, "127.0.0.1:"+d.port, mqtttest.Persistent("away")); back.Connack.SessionPresent {
		t.Error("the session is back after a restart")
	}
}

// An operator ends more sessions than one request has room for, from a list.
func TestManySessions(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	const most = 520 // more than one request deletes
	d := serveIn(t, data)
	addr := "127.0.0.1:" + d.port
	for i := range most {
		mqtttest.Connect(t, addr, mqtttest.Persistent(fmt.Sprintf("squatter-%d", i))).Drop()
	}

	ids := operate(t, data, "", "list", "--ids")
	if n := strings.Count(ids.out, "squatter-"); ids.code != 0 || n != most {
		t.Fatalf("status %d, errors %q, %d sessions", ids.code, ids.err, n)
	}
	operate(t, data, ids.out, "delete", "--stdin").want(t, "delete all", 0, "", "")
	operate(t, data, "", "list").want(t, "list afterwards", 0, "", "")
	mqtttest.Connect(t, addr, mqtttest.Persistent("welcome"))
}

func TestSessionErrors(t *testing.T) {
	t.Parallel()
	nowhere := t.TempDir()
	for _, test := range []struct{ args, want string }{
		{"list", "holdfast session list: no server can be reached through " + nowhere + "/holdfast.sock: is --data the directory of a server that is running?"},
		{"kick a", "no server can be reached"},
		{"kick", "which client? usage: holdfast session kick [flags] CLIENT..."},
		{"delete --stdin a", "--stdin and CLIENT exclude each other"},
		{"lst", `holdfast session: unknown command "lst"; did you mean list?; see holdfast session --help`},
		{"list a", `holdfast session list: unknown command "a" for "holdfast session list"`},
	} {
		operate(t, nowhere, "", strings.Fields(test.args)...).want(t, test.args, 2, "", test.want)
	}
}
