package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// raw sends a TXN of these words, and returns the payload of the response.
func raw(c *mqtttest.Client, words ...string) string { return rawBy(c, "answers/raw", words...) }

// rawBy is raw for a client that awaits its responses on a topic of its own.
func rawBy(c *mqtttest.Client, topic string, words ...string) string {
	var payload strings.Builder
	fmt.Fprintf(&payload, "*%d\r\n$3\r\nTXN\r\n", 1+len(words))
	for _, w := range words {
		fmt.Fprintf(&payload, "$%d\r\n%s\r\n", len(w), w)
	}
	correlation := "c"
	c.SendPublish(mqtttest.Message{
		Topic: protocol.Current.Topic, QoS: 1, Payload: payload.String(), ResponseTopic: &topic, CorrelationData: &correlation,
		User: [][2]string{{protocol.Current.TimeProperty, fmt.Sprintf("%015d:00000:test", time.Now().UnixMilli())}},
	})
	for {
		if p := c.Next(); p.Type == mqtt.PUBLISH && p.Publish.Topic == topic {
			return p.Publish.Payload
		}
	}
}

// A transaction that must be refused says which operation it is for, and why; over the wire,
// by the Go client, and by the command, which names the place in the JSON. Nothing is changed:
// each has a write of the key witness, and a message for the topic witness, both first.
func TestTransactionsThatAreRefused(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir(), "--max-txn-operations", "5", "--max-txn-deliveries", "2", "--max-delay", "1h")
	if r := d.run("set", "k", "old"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	wire := mqtttest.Connect(t, d.Addr)
	wire.Subscribe("answers/raw", 1)
	observer := mqtttest.Connect(t, d.Addr)
	observer.Subscribe("witness", 1)
	c, err := client.Dial(t.Context(), d.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	k := txn.Key("k")
	type object = map[string]any
	type list = []any
	message := func(topic string, user ...[2]string) txn.Message {
		m := txn.Message{Topic: topic, Payload: []byte("x")}
		for _, u := range user {
			m.UserProperties = append(m.UserProperties, txn.UserProperty{Name: u[0], Value: u[1]})
		}
		return m
	}
	// The words begin with SET witness and PUBLISH witness, operations 1 and 2.
	for name, tc := range map[string]struct {
		words   string // separated by spaces; "" in quotes is an empty one
		wire    string // of the error
		build   func(*txn.Txn)
		client  string // part of the error; empty: the client's functions cannot say it
		json    object
		command string // part of the error
	}{
		"two conditions on a key": {
			"IF k EXISTS IF k VALUE x", "operation 4: an earlier operation of this kind has the same key",
			func(t *txn.Txn) { t.If(k.Exists(), k.HasValue(nil)) }, `IF "k": an earlier operation of this kind has the same key`,
			object{"if": list{object{"key": "k", "exists": true}, object{"key": "k", "value": ""}}}, `if, item 2: IF "k": an earlier operation of this kind has the same key`,
		},
		"two writes of a key": {
			"SET k 1 DEL k", "operation 4: an earlier operation of this kind has the same key",
			func(t *txn.Txn) { t.Then(k.Set(nil), k.Del()) }, `DEL "k": an earlier operation of this kind has the same key`,
			object{"then": list{object{"set": "k", "value": "1"}, object{"del": "k"}}}, `then, item 3: DEL "k": an earlier operation of this kind has the same key`,
		},
		"the same message twice": {
			"ONCE k m ONCE k m", "operation 4: an earlier operation of this kind has the same key",
			func(t *txn.Txn) { t.Once("k", "m", 0).Once("k", "m", time.Hour) }, `ONCE "k": an earlier operation of this kind has the same key`,
			object{"once": list{object{"key": "k", "message_id": "m"}, object{"key": "k", "message_id": "m", "keep": "1h"}}}, `once, item 2: ONCE "k": an earlier`,
		},
		"an unknown operation": {"FROB k", "operation 3: unknown operation", nil, "", object{"frob": list{}}, `unknown field "frob"`},
		"an unknown option":    {"SET k 1 FROB 2", "operation 4: unknown operation", nil, "", object{"then": list{object{"set": "k", "value": "1", "frob": 2}}}, `then, item 1: json: unknown field "frob"`},
		"an unknown condition": {"IF k FROB", "operation 3: syntax error", nil, "", object{"if": list{object{"key": "k", "frob": 2}}}, `if, item 1: json: unknown field "frob"`},
		"an empty key": {
			`SET "" 1`, "operation 3: the key length is zero",
			func(t *txn.Txn) { t.Then(txn.Key("").Set(nil)) }, `SET "": the key length is zero`,
			object{"then": list{object{"set": "", "value": "1"}}}, `then, item 2: SET "": the key length is zero`,
		},
		"an empty message ID": {
			`ONCE k ""`, "operation 3: syntax error",
			func(t *txn.Txn) { t.Once("k", "", 0) }, "Once of a message ID of 0 bytes: it has from 1 to 1024",
			object{"once": object{"key": "k", "message_id": ""}}, "once, item 1: message_id has 0 bytes: it must have 1 to 1024",
		},
		"a message ID that is too long": {
			"ONCE k " + strings.Repeat("m", 1025), "operation 3: syntax error",
			func(t *txn.Txn) { t.Once("k", strings.Repeat("m", 1025), 0) }, "Once of a message ID of 1025 bytes: it has from 1 to 1024",
			object{"once": object{"key": "k", "message_id": strings.Repeat("m", 1025)}}, "once, item 1: message_id has 1025 bytes: it must have 1 to 1024",
		},
		"a message that is done twice": {
			"DONE k m DONE k m", "operation 4: an earlier operation of this kind has the same key",
			func(t *txn.Txn) {
				t.Done("k", "m", hlc.Timestamp{}, nil).Done("k", "m", hlc.Timestamp{}, nil)
			}, `DONE "k": an earlier operation of this kind has the same key`,
			object{"done": list{object{"key": "k", "message_id": "m"}, object{"key": "k", "message_id": "m", "context": "x"}}}, `done, item 2: DONE "k": an earlier`,
		},
		"an open message with a digest": {
			"ONCE k m OPEN DIGEST d", "operation 3: syntax error",
			func(t *txn.Txn) { t.OnceOpen("k", "m", 0, nil).Digest([]byte("d")) }, "Digest of a Once that",
			object{"once": object{"key": "k", "message_id": "m", "open": true, "digest": "d"}}, "once, item 1: open and digest exclude each other",
		},
		"an invalid topic": {
			"PUBLISH a/+ x", "operation 3: the topic name is invalid",
			func(t *txn.Txn) { t.Publish(message("a/+")) }, `PUBLISH "a/+": the topic name is invalid`,
			object{"publish": list{object{"topic": "a/+", "payload": "x"}}}, `publish, item 2: PUBLISH "a/+": the topic name is invalid`,
		},
		"a reserved topic": {
			"PUBLISH $SYS/x x", "operation 3: the topic is reserved",
			func(t *txn.Txn) { t.Publish(message("$SYS/x")) }, `PUBLISH "$SYS/x": the topic is reserved`,
			object{"publish": list{object{"topic": "$SYS/x", "payload": "x"}}}, `publish, item 2: PUBLISH "$SYS/x": the topic is reserved`,
		},
		"too many operations": {
			"SET a 1 SET b 1 SET c 1 SET d 1 SET e 1", "operation 7: the quota has been exceeded",
			func(t *txn.Txn) {
				t.Then(txn.Key("a").Set(nil), txn.Key("b").Set(nil), txn.Key("c").Set(nil), txn.Key("d").Set(nil), txn.Key("e").Set(nil))
			}, "the quota has been exceeded (the server's --max-txn-operations)",
			object{"then": list{object{"del": "a"}, object{"del": "b"}, object{"del": "c"}, object{"del": "d"}, object{"del": "e"}}}, `then, item 6: DEL "e": the quota has been exceeded (the server's --max-txn-operations)`,
		},
		"too many deliveries": {
			"PUBLISH witness x PUBLISH witness x", "operation 4: the quota has been exceeded",
			func(t *txn.Txn) { t.Publish(message("witness"), message("witness")) }, `PUBLISH "witness": the quota has been exceeded (the server's --max-txn-deliveries)`,
			object{"publish": list{object{"topic": "witness", "payload": "x"}, object{"topic": "witness", "payload": "x"}}}, `publish, item 3: PUBLISH "witness": the quota has been exceeded (the server's --max-txn-deliveries)`,
		},
		"a timer beyond --max-delay": {
			"PUBLISH out x USER holdfast-deliver-after 3600001", "operation 3: the quota has been exceeded",
			func(t *txn.Txn) { t.Publish(message("out", [2]string{"holdfast-deliver-after", "3600001"})) }, `PUBLISH "out": the quota has been exceeded (the server's --max-delay)`,
			object{"publish": list{object{"topic": "out", "payload": "x", "user": list{list{"holdfast-deliver-after", "3600001"}}}}}, `publish, item 2: PUBLISH "out": the quota has been exceeded (the server's --max-delay)`,
		},
		"a timer without an ID": {
			`PUBLISH out x USER holdfast-deliver-after 1 USER holdfast-timer-id ""`, "operation 3: a property of the message is invalid",
			func(t *txn.Txn) {
				t.Publish(message("out", [2]string{"holdfast-deliver-after", "1"}, [2]string{"holdfast-timer-id", ""}))
			}, `the message to "out": the user property holdfast-timer-id must have from 1 to 256 bytes`,
			object{"publish": list{object{"topic": "out", "payload": "x", "user": list{list{"holdfast-deliver-after", "1"}, list{"holdfast-timer-id", ""}}}}}, "publish, item 2: the user property holdfast-timer-id must have from 1 to 256 bytes",
		},
	} {
		words := strings.Fields("SET witness x PUBLISH witness x " + tc.words)
		for i, w := range words {
			words[i] = strings.ReplaceAll(w, `""`, "")
		}
		if got, want := raw(wire, words...), "-ERR "+tc.wire+"\r\n"; got != want {
			t.Errorf("%s, on the wire: %q, want %q", name, got, want)
		}
		if tc.client != "" {
			x := c.Txn().Then(txn.Key("witness").Set(nil)).Publish(message("witness"))
			tc.build(x)
			_, err := x.Commit(t.Context())
			var refused *client.Error
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), tc.client) {
				t.Errorf("%s, by the client: %v, want %q", name, err, tc.client)
			}
		}
		then, _ := tc.json["then"].(list)
		publish, _ := tc.json["publish"].(list)
		if name != "an unknown option" { // whose item is counted without the witness
			tc.json["then"] = append(list{object{"set": "witness", "value": "x"}}, then...)
		}
		tc.json["publish"] = append(list{object{"topic": "witness", "payload": "x"}}, publish...)
		document, err := json.Marshal(tc.json)
		if err != nil {
			t.Fatal(err)
		}
		if r := d.runWith(strings.NewReader(string(document)), "txn", "-"); r.code != 2 || !strings.Contains(r.err, "holdfast txn: ") || !strings.Contains(r.err, tc.command) {
			t.Errorf("%s, by the command: %+v, want %q", name, r, tc.command)
		}
		if r := d.run("get", "witness"); r.code != 1 {
			t.Fatalf("%s: the key witness is there: %+v", name, r)
		}
		if r := d.run("get", "k"); r.out != "old" {
			t.Fatalf("%s: the key k is %+v", name, r)
		}
	}
	if got := d.sys("store/remembered"); got != "0" {
		t.Errorf("%s messages are remembered", got)
	}
	observer.Quiet()
	if got := raw(wire, strings.Fields("SET witness x PUBLISH witness x SET k new PUBLISH witness last")...); !strings.HasPrefix(got, "*2\r\n:1\r\n") {
		t.Errorf("what is allowed: %q", got)
	}
	if got := mqtttest.Payloads(observer.ReceiveN(2)); got[0] != "x" || got[1] != "last" {
		t.Errorf("subscribers get %v", got)
	}
}

// The command takes what the wire takes: several messages, each with a KEEP, and a context or
// a digest, and messages with every property.
func TestTransactionOfTheCommandIsComplete(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir())
	sub := mqtttest.Connect(t, d.Addr)
	sub.Subscribe("jobs/done", 2)
	const document = `{
	  "if": [{"key": "new", "exists": false}],
	  "once": [{"key": "jobs", "message_id": "a", "keep": "24h", "context": "left"},
	           {"key": "jobs", "message_id_base64": "/w==", "digest_base64": "/w=="}],
	  "then": [{"set_base64": "/w==", "value_base64": "/w==", "px": "1h"}, {"del": "none"}],
	  "publish": [{"topic": "jobs/done", "payload": "done", "qos": 2, "retain": true, "expiry": "1h", "utf8": true,
	               "content_type": "text/plain", "response_topic": "answers", "correlation_data_base64": "/w==", "user": [["n", "v"], ["n", "w"]]}]
	}`
	run := func(document string) result {
		return d.runWith(strings.NewReader(document), "txn", "--output", "json", "-")
	}
	if r := run(document); r.code != 0 || !strings.Contains(r.out, `"outcome":"committed"`) || !strings.Contains(r.out, `"keep":"168h0m0s"`) {
		t.Errorf("%+v", r)
	}
	m := sub.Receive()
	if m.Payload != "done" || m.QoS != 2 || m.Topic != "jobs/done" {
		t.Errorf("%+v", m)
	}
	for name, want := range map[string]bool{"a": true, "b": false} {
		r := run(`{"once": [{"key": "jobs", "message_id": "` + name + `x"}, {"key": "jobs", "message_id": "` + name + `"}]}`)
		if already := strings.Contains(r.out, `"outcome":"already_done"`) && strings.Contains(r.out, `"once":2`); already != want || r.code != 0 {
			t.Errorf("message %s: %+v", name, r)
		}
	}
	if r := run(`{"once": {"key": "jobs", "message_id_base64": "/w==", "digest": "other"}}`); r.code != 2 ||
		!strings.Contains(r.err, `once, item 1: ONCE "jobs": the message is remembered with another digest`) {
		t.Errorf("another digest: %+v", r)
	}
	if r := run(`{"if": [{"key": "k", "made_by_base64": "/w=="}]}`); r.code != 1 {
		t.Errorf("made_by_base64: %+v", r)
	}
	if r := run(`{"once": {"key": "jobs", "message_id": "open", "keep": "24h", "context": "captured", "open": true}, "then": [{"set": "jobs", "value": "1"}]}`); r.code != 0 {
		t.Errorf("an open message: %+v", r)
	}
	if r := run(`{"cancel": ["none"], "done": [{"key": "jobs", "message_id": "open", "version": "1:1:other"}, {"key": "jobs", "message_id_base64": "b3Blbg=="}]}`); r.code == 0 {
		t.Errorf("a message that is done twice: %+v", r)
	}
	for _, want := range []string{`"done":[false,false]`, `"done":[true,false]`, `"done":[true,false]`} {
		version := ""
		if strings.Contains(want, "[false") {
			version = `, "version": "1:1:other"`
		}
		if r := run(`{"cancel": ["none"], "done": [{"key": "jobs", "message_id": "open"` + version + `, "context_base64": "/w=="}, {"key": "jobs", "message_id": "none"}]}`); r.code != 0 || !strings.Contains(r.out, `"cancelled":[false]`) || !strings.Contains(r.out, want) {
			t.Errorf("%+v, want %s", r, want)
		}
	}
}
