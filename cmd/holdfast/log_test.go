package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// awaitLog waits until the server has logged a line that matches.
func (d *daemon) awaitLog(pattern string) {
	d.t.Helper()
	line := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); !line.MatchString(d.Output()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("no line matches %s in\n%s", pattern, d.Output())
		}
	}
}

// The log says who came, who left, and why.
func TestTheLogOfClients(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir())
	addr := d.Addr
	d.awaitLog(`level=INFO msg="holdfast listening on 127\.0\.0\.1:\d+ with data in \S+ \(0 keys\), durability sync" version="`)

	mqtttest.Connect(t, addr, mqtttest.ClientID("polite")).Disconnect()
	d.awaitLog(`level=INFO msg="client connected" client=polite remote=127\.0\.0\.1:\d+ version=5 session_present=false\n`)
	d.awaitLog(`level=INFO msg="client disconnected" client=polite remote=127\.0\.0\.1:\d+ by=client code="Normal disconnection"\n`)

	mqtttest.Connect(t, addr, mqtttest.ClientID("tired")).DisconnectWith(mqtt.Disconnect{Code: mqtt.DisconnectWithWill, ReasonString: []byte("battery low")})
	d.awaitLog(`msg="client disconnected" client=tired .* by=client code="Disconnect with Will Message" reason="battery low"\n`)

	mqtttest.Connect(t, addr, mqtttest.ClientID("gone")).Drop()
	d.awaitLog(`msg="client disconnected" client=gone .* by=network reason="`)

	first := mqtttest.Connect(t, addr, mqtttest.ClientID("twin"))
	mqtttest.Connect(t, addr, mqtttest.ClientID("twin"))
	first.ExpectDisconnect(mqtt.SessionTakenOver)
	d.awaitLog(`msg="client disconnected" client=twin .* by=server code="Session taken over" reason="another connection uses this client identifier"\n`)

	broken := mqtttest.Connect(t, addr, mqtttest.ClientID("broken"))
	broken.Write([]byte{0xC0, 1, 0})
	broken.ExpectDisconnect(mqtt.MalformedPacket)
	d.awaitLog(`msg="client disconnected" client=broken .* by=server code="Malformed Packet" reason="`)

	mqtttest.Refused(t, addr, mqtt.ClientIdentifierNotValid, mqtttest.ClientID(strings.Repeat("x", 2000)))
	d.awaitLog(`msg="refusing a connection" client="" .* code="Client Identifier not valid" reason="the client identifier is too long"\n`)

	// Who gives a password should learn that it protects nothing.
	mqtttest.Connect(t, addr, mqtttest.ClientID("careful"), mqtttest.Credentials("me", "secret"))
	d.awaitLog(`msg="client connected" client=careful .* user=me credentials="not checked"\n`)
	if strings.Contains(d.Output(), "secret") {
		t.Error("the log shows a password")
	}
}

// However fast lines come, the log stays short, and says how many there were.
func TestTheLogIsShort(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir(), "--log-burst", "3")
	for range 50 {
		mqtttest.Refused(t, d.Addr, mqtt.ClientIdentifierNotValid, mqtttest.ClientID(strings.Repeat("x", 2000)))
	}
	d.awaitLog(`level=INFO msg="log lines were suppressed" message="refusing a connection" count=\d+ since=`)
	if n := strings.Count(d.Output(), `msg="refusing a connection"`); n >= 50 {
		t.Errorf("all of %d lines were written", n)
	}
}

// With --log-format json each line is an object.
func TestTheLogAsJSON(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir(), "--log-format", "json")
	mqtttest.Connect(t, d.Addr, mqtttest.ClientID("x")).Disconnect()
	d.awaitLog(`"level":"INFO","msg":"client disconnected","client":"x","remote":"127\.0\.0\.1:\d+","by":"client"`)
	for line := range strings.Lines(d.Output()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("this is no JSON: %s", line)
		}
	}
}
