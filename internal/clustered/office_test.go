package clustered_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// withoutQuorum is a leader whose only other node was stopped, so that nothing is stored any more. before is
// called before that.
func withoutQuorum(t *testing.T, before func(address string)) (c *cluster, leader string) {
	t.Helper()
	c = start(t, "a", "b")
	leader, others := c.leader()
	before(c.addrs[leader])
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.nodes[others[0]].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, others[0])
	return c, leader
}

// What waits for the disk when a leader loses its office ends with the server: otherwise the memory of
// that server would never be free again. No client is told that its request was done.
func TestWhatWaitsWhenALeaderLosesItsOffice(t *testing.T) {
	t.Parallel()
	var subscriber, publisher *mqtttest.Client
	c, leader := withoutQuorum(t, func(address string) {
		mqtttest.Connect(t, address, mqtttest.Persistent("queue")).Subscribe("jobs", 1)
		mqtttest.Connect(t, address, mqtttest.Persistent("again")).Disconnect()
		subscriber = mqtttest.Connect(t, address, mqtttest.Persistent("subscriber"))
		publisher = mqtttest.Connect(t, address)
		publisher.Publish(mqtttest.Message{Topic: "kept", Payload: "x", QoS: 1, Retain: true})
	})

	// Given a clean start of a session that is there, a subscription with retained messages, a message of
	// an administrator, and more publishes than the Receive Maximum allows,
	again := mqtttest.Dial(t, c.addrs[leader])
	again.SendConnect(mqtttest.ClientID("again"))
	subscriber.SendSubscribe(0, mqtttest.Sub{Filter: "kept", QoS: 1})
	var flood []byte
	for id := range 2 * int(publisher.Connack.ReceiveMaximum) {
		flood = append(flood, mqtttest.EncodePublish(mqtt.V5, mqtttest.Message{Topic: "jobs", QoS: 1, PacketID: uint16(id + 1)})...)
	}
	go func() { _ = publisher.WriteErr(flood) }()
	posted := make(chan string, 1)
	go func() { posted <- c.post(leader, `{"topic": "jobs", "payload": "x", "qos": 1}`) }()

	// when the leader loses its office,
	c.until("the leader loses its office", func() bool { return c.nodes[leader].Status().Role != node.Leader })

	// then each connection ends without an acknowledgement,
	for _, client := range []*mqtttest.Client{again, subscriber, publisher} {
		for {
			p, err := client.Read(time.Now().Add(patience))
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Type == mqtt.SUBACK || p.Type == mqtt.PUBACK || p.Type == mqtt.CONNACK && p.Connack.Code != mqtt.ServerUnavailable {
				t.Errorf("a client gets %v", p)
			}
		}
	}
	if got := <-posted; !strings.HasPrefix(got, "503 ") {
		t.Errorf("the administrator gets %s", got)
	}
	// and nothing of the server is left.
	c.until("all that waited has ended", func() bool {
		stacks := make([]byte, 4<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for _, wait := range []string{").WaitDurable(", ").waitForPlace(", "transport.(*Gate).wait("} {
			if bytes.Contains(stacks, []byte(wait)) {
				return false
			}
		}
		return true
	})
	if strings.Contains(c.log.String(), "the server of a lost office has ended") {
		t.Error("the server did not end in time")
	}
}

// post has a message be published by the HTTP API of a node, and list asks it for a list: the status
// and the answer.
func (c *cluster) post(name, message string) string {
	return answer(http.Post("http://"+c.nodes[name].AdminAddr().String()+"/api/v1/publish", "application/json", strings.NewReader(message)))
}

func (c *cluster) list(name, path string) string {
	return answer(http.Get("http://" + c.nodes[name].AdminAddr().String() + path))
}

func answer(response *http.Response, err error) string {
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(response.StatusCode, " ", string(text))
}

// The HTTP API answers nothing from memory without a lease: another node may lead, at which clients
// have subscribed to what an administrator publishes here.
func TestAPIWithoutALease(t *testing.T) {
	t.Parallel()
	c, leader := withoutQuorum(t, func(string) {})
	c.until("the leader has no lease", func() bool { return c.nodes[leader].Status().Lease == 0 })
	ask := []func() string{
		func() string { return c.post(leader, `{"topic": "unsubscribed", "payload": "x", "qos": 1}`) },
		func() string { return c.list(leader, "/api/v1/retained?filter=%23") },
		func() string { return c.list(leader, "/api/v1/clients") },
	}
	answers := make(chan string)
	for _, f := range ask {
		go func() { answers <- f() }()
	}
	for range ask {
		if got := <-answers; !strings.HasPrefix(got, "503 ") {
			t.Errorf("an administrator gets %s", got)
		}
	}
}
