package httpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/zipped"
)

// api is a server and what its API is asked with.
type api struct {
	*testserver.Server
	t    *testing.T
	d    *description
	user string // with the password "secret of USER"; empty: none
}

func start(t *testing.T, change ...func(*server.Config)) *api {
	t.Helper()
	change = append(change, func(c *server.Config) { c.Admin = "127.0.0.1:0" })
	return &api{Server: testserver.Start(t, change...), t: t, d: read(t)}
}

// as is the same server, asked by another user.
func (a *api) as(user string) *api {
	other := *a
	other.user = user
	return &other
}

// ask makes a request with a body of JSON, unless that is nil, reads the answer into answer,
// unless that is nil, and checks that it fits the description.
func (a *api) ask(method, target string, body, answer any, change ...func(*http.Request)) (status int) {
	a.t.Helper()
	var text []byte
	if body != nil {
		var err error
		if raw, is := body.(string); is {
			text = []byte(raw)
		} else if text, err = json.Marshal(body); err != nil {
			a.t.Fatal(err)
		}
	}
	r, err := http.NewRequestWithContext(a.t.Context(), method, "http://"+a.AdminAddr().String()+target, bytes.NewReader(text))
	if err != nil {
		a.t.Fatal(err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if a.user != "" {
		r.SetBasicAuth(a.user, "secret of "+a.user)
	}
	for _, f := range change {
		f(r)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	a.check(r, response, got)
	if answer != nil {
		if err := json.Unmarshal(got, answer); err != nil {
			a.t.Fatalf("%s %s: %s: %v", method, target, got, err)
		}
	}
	return response.StatusCode
}

// check checks that an answer fits the description.
func (a *api) check(r *http.Request, response *http.Response, body []byte) {
	a.t.Helper()
	var value any
	if kind := response.Header.Get("Content-Type"); kind != "application/json" {
		a.t.Errorf("%s %s: the answer is %q", r.Method, r.URL, kind)
	}
	if err := json.Unmarshal(body, &value); err != nil {
		a.t.Fatalf("%s %s: %q is no JSON: %v", r.Method, r.URL, body, err)
	}
	path := r.URL.Path
	if id, is := strings.CutPrefix(path, "/api/v1/clients/"); is && id != "" {
		path = "/api/v1/clients/{id}"
	}
	want := a.d.Components.Schemas["Failure"] // of a path or a method that there is not
	if o := a.d.Paths[path][strings.ToLower(r.Method)]; o != nil {
		s, described := o.Responses[fmt.Sprint(response.StatusCode)]
		if !described && response.StatusCode != http.StatusMisdirectedRequest {
			a.t.Errorf("%s %s: the status %d is not described", r.Method, path, response.StatusCode)
		}
		if described {
			want = s.Content["application/json"].Schema
		}
	}
	for _, problem := range a.d.fits("answer", want, value) {
		a.t.Errorf("%s %s: %d %s: %s", r.Method, r.URL, response.StatusCode, body, problem)
	}
}

// refused makes a request that is to be refused with a status and a text.
func (a *api) refused(status int, text, method, target string, body any, change ...func(*http.Request)) {
	a.t.Helper()
	var f httpapi.Failure
	if got := a.ask(method, target, body, &f, change...); got != status || !strings.Contains(f.Error, text) {
		a.t.Errorf("%s %s: %d %q, want %d %q", method, target, got, f.Error, status, text)
	}
}

// Clients are listed in pages by their IDs, each with what its session and its connection are.
func TestClients(t *testing.T) {
	t.Parallel()
	a := start(t)
	for i := range 5 {
		c := mqtttest.Connect(t, a.Addr, mqtttest.Persistent(fmt.Sprintf("dev/%d", i)), mqtttest.KeepAlive(600))
		c.Subscribe("x", 1)
		if i%2 == 1 {
			c.Disconnect()
			c.AwaitEnd()
			awaitAway(t, a, fmt.Sprintf("dev/%d", i))
		}
	}
	mqtttest.Connect(t, a.Addr, mqtttest.ClientID("other"), mqtttest.V311())

	list := func(query string) (ids []string) {
		after := ""
		for {
			var page httpapi.ClientPage
			if status := a.ask("GET", "/api/v1/clients?"+query+"&after="+after, nil, &page); status != 200 {
				t.Fatalf("%s: %d", query, status)
			}
			for _, c := range page.Clients {
				ids = append(ids, c.ClientID)
				if c.Connected != (c.Connection != nil) || c.Since.IsZero() {
					t.Errorf("%+v", c)
				}
			}
			if after = page.Next; after == "" {
				return ids
			}
		}
	}
	all := []string{"dev/0", "dev/1", "dev/2", "dev/3", "dev/4", "other"}
	for query, want := range map[string][]string{
		"": all, "limit=1": all, "limit=2": all, "limit=6": all, "limit=1000": all, "prefix=dev%2F&limit=2": all[:5], "prefix=none": nil,
		"connected=true&limit=1": {"dev/0", "dev/2", "dev/4", "other"}, "connected=false&limit=2": {"dev/1", "dev/3"}, "connected=false&prefix=other": nil,
	} {
		if got := list(query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	var c httpapi.Client
	if status := a.ask("GET", "/api/v1/clients/dev%2F0", nil, &c); status != 200 || c.ClientID != "dev/0" || c.Session.Subscriptions != 1 || c.Connection == nil || c.Connection.KeepAliveSeconds != 600 || c.Connection.Protocol != "5.0" {
		t.Errorf("%d %+v", status, c)
	}
	if status := a.ask("GET", "/api/v1/clients/other", nil, &c); status != 200 || c.Connection.Protocol != "3.1.1" {
		t.Errorf("%d %+v", status, c)
	}
	a.refused(404, `there is no client "none"`, "GET", "/api/v1/clients/none", nil)
	a.refused(404, "there is no /api/v1/clients/dev/0", "GET", "/api/v1/clients/dev/0", nil)
	a.refused(400, "want a number from 1 to 1000", "GET", "/api/v1/clients?limit=1001", nil)
	a.refused(400, "want a number from 1 to 1000", "GET", "/api/v1/clients?limit=0", nil)
	a.refused(400, "want a number from 1 to 1000", "GET", "/api/v1/clients?limit=010", nil)
	a.refused(400, "want true or false", "GET", "/api/v1/clients?connected=yes", nil)
	a.refused(400, "not what an answer has as next", "GET", "/api/v1/clients?after=%25", nil)
	a.refused(400, "takes prefix, connected, limit, after", "GET", "/api/v1/clients?page=2", nil)
	a.refused(400, "takes none", "GET", "/api/v1/clients/x?page=2", nil)
	a.refused(400, "given 2 times", "GET", "/api/v1/clients?limit=1&limit=2", nil)
}

// Of the messages of a session, those count as inflight that the client has not acknowledged.
func TestInflight(t *testing.T) {
	t.Parallel()
	a := start(t)
	c := mqtttest.Connect(t, a.Addr, mqtttest.Persistent("slow"), mqtttest.ReceiveMaximum(2), mqtttest.HoldAcks())
	c.Subscribe("x", 1)
	p := mqtttest.Connect(t, a.Addr, mqtttest.ClientID("publisher"))
	for range 3 {
		p.Publish(mqtttest.Message{Topic: "x", Payload: "y", QoS: 1})
	}
	received := c.ReceiveN(2)
	has := func(inflight, queued int) {
		t.Helper()
		var got httpapi.Client
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			if status := a.ask("GET", "/api/v1/clients/slow", nil, &got); status != 200 {
				t.Fatalf("%d", status)
			}
			if got.Connection.InflightMessages == inflight && got.Session.QueuedMessages == queued {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d inflight and %d queued, want %d and %d", got.Connection.InflightMessages, got.Session.QueuedMessages, inflight, queued)
			}
		}
	}
	has(2, 3)
	for _, m := range received {
		c.Acknowledge(m)
	}
	c.Acknowledge(c.Receive())
	has(0, 0)
}

// DELETE ends a connection with the code for what an operator does, and with session=true the
// session as well.
func TestEndClient(t *testing.T) {
	t.Parallel()
	a := start(t)
	kept := mqtttest.Connect(t, a.Addr, mqtttest.Persistent("kept"))
	gone := mqtttest.Connect(t, a.Addr, mqtttest.Persistent("gone"))
	var e httpapi.Ended
	if status := a.ask("DELETE", "/api/v1/clients/kept", nil, &e); status != 200 || e != (httpapi.Ended{ClientID: "kept", Disconnected: true}) {
		t.Errorf("%d %+v", status, e)
	}
	kept.AwaitDisconnect(mqtt.AdministrativeAction)
	kept.AwaitEnd()
	awaitAway(t, a, "kept")
	a.refused(409, "is not connected: with ?session=true", "DELETE", "/api/v1/clients/kept", nil)
	if status := a.ask("DELETE", "/api/v1/clients/gone?session=true", nil, &e); status != 200 || e != (httpapi.Ended{ClientID: "gone", Disconnected: true, SessionDeleted: true}) {
		t.Errorf("%d %+v", status, e)
	}
	gone.AwaitDisconnect(mqtt.AdministrativeAction)
	a.refused(404, "there is no client", "DELETE", "/api/v1/clients/gone?session=true", nil)
	if ack := mqtttest.Dial(t, a.Addr).Connect(mqtttest.Persistent("gone")); ack.SessionPresent {
		t.Error("the session that was deleted is there")
	}
	if ack := mqtttest.Dial(t, a.Addr).Connect(mqtttest.Persistent("kept")); !ack.SessionPresent {
		t.Error("the session whose connection was ended is not there")
	}
}

// Subscriptions are listed by client and filter, and found by a topic that they match.
func TestSubscriptions(t *testing.T) {
	t.Parallel()
	a := start(t)
	c := mqtttest.Connect(t, a.Addr, mqtttest.ClientID("c"))
	for _, filter := range []string{"a/+", "b", "$share/g/a/#"} {
		c.Subscribe(filter, 1)
	}
	mqtttest.Connect(t, a.Addr, mqtttest.ClientID("b")).Subscribe("a/1", 2)
	list := func(query string) (got []string) {
		after := ""
		for {
			var page httpapi.SubscriptionPage
			if status := a.ask("GET", "/api/v1/subscriptions?"+query+"&after="+after, nil, &page); status != 200 {
				t.Fatalf("%s: %d", query, status)
			}
			for _, s := range page.Subscriptions {
				got = append(got, fmt.Sprint(s.ClientID, " ", s.Filter, " ", s.QoS))
			}
			if after = page.Next; after == "" {
				return got
			}
		}
	}
	all := []string{"b a/1 2", "c $share/g/a/# 1", "c a/+ 1", "c b 1"}
	for query, want := range map[string][]string{
		"": all, "limit=1": all, "limit=3": all, "limit=4": all, "client=c&limit=2": all[1:], "client=none": nil,
		"topic=a%2F1": all[:3], "topic=b": all[3:], "topic=b&client=b": nil, "topic=a%2F2&limit=1": all[1:3],
	} {
		if got := list(query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	a.refused(400, "no topic name", "GET", "/api/v1/subscriptions?topic=a%2F%2B", nil)
}

// What is published reaches subscribers as it was given, and is durable when that is answered.
func TestPublish(t *testing.T) {
	t.Parallel()
	a := start(t)
	c := mqtttest.Connect(t, a.Addr, mqtttest.ClientID("c"))
	c.Subscribe("t/#", 2)
	var p httpapi.Published
	full := `{"topic":"t/1","payload":"21 °C","qos":2,"retain":true,"properties":{"payloadFormatIndicator":1,"messageExpiryInterval":3600,
		"contentType":"text/plain","responseTopic":"r","correlationData":"AAH/","userProperties":[{"name":"a","value":"1"},{"name":"a","value":"2"}]}}`
	if status := a.ask("POST", "/api/v1/publish", full, &p); status != 200 || p != (httpapi.Published{Reason: "Success", Matched: 1}) {
		t.Fatalf("%d %+v", status, p)
	}
	got := c.Receive()
	if got.Topic != "t/1" || got.Payload != "21 °C" || got.QoS != 2 || *got.ContentType != "text/plain" || *got.ResponseTopic != "r" || *got.CorrelationData != "\x00\x01\xff" || len(got.User) != 2 {
		t.Errorf("%+v", got)
	}
	if status := a.ask("POST", "/api/v1/publish", `{"topic":"t/2","payloadBase64":"/wA="}`, &p); status != 200 {
		t.Fatalf("%d %+v", status, p)
	}
	if got := c.Receive(); got.Payload != "\xff\x00" {
		t.Errorf("%q", got.Payload)
	}
	if status := a.ask("POST", "/api/v1/publish", `{"topic":"nowhere","qos":1}`, &p); status != 200 || p != (httpapi.Published{ReasonCode: 16, Reason: "No matching subscribers"}) {
		t.Errorf("%d %+v", status, p)
	}
	if status := a.ask("POST", "/api/v1/publish", `{"topic":"$delayed/0/t/3","payload":"later"}`, &p); status != 200 || !p.Delayed {
		t.Errorf("%d %+v", status, p)
	}
	if got := c.Receive(); got.Topic != "t/3" || got.Payload != "later" {
		t.Errorf("%+v", got)
	}
	const request = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	a.refused(403, "requests to the state store, which are made over MQTT", "POST", "/api/v1/publish", `{"topic":"`+request+`"}`)
	a.Restart()
	again := mqtttest.Connect(t, a.Addr, mqtttest.ClientID("c"))
	again.Subscribe("t/1", 1)
	if got := again.Receive(); got.Payload != "21 °C" || !got.Retain {
		t.Errorf("after a restart: %+v", got)
	}
}

// A message that a client could not publish is refused with the code that the client would get.
func TestPublishRefusals(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *server.Config) { c.Limits.MaxPacketSize, c.Limits.MaxTopicLevels = 2048, 4 })
	for body, want := range map[string]struct {
		status int
		code   mqtt.ReasonCode
		text   string
	}{
		``:                                 {400, 0, "not what /api/v1/openapi.json describes"},
		`{"topic":"a"} {}`:                 {400, 0, "more than one JSON value"},
		`{"topic":"a","qoS2":1}`:           {400, 0, "unknown field"},
		`{"topic":7}`:                      {400, 0, "cannot unmarshal"},
		"{\"topic\":\"a\xff\"}":            {400, 0, "not UTF-8"},
		`{"topic":"a","payload":"\udc00"}`: {400, 0, "half of a surrogate pair"},
		`{"topic":"a","qos":3}`:            {400, 0, "want 0, 1 or 2"},
		`{"topic":"a","qos":-1}`:           {400, 0, "want 0, 1 or 2"},
		`{"topic":"a","payload":"x","payloadBase64":"eA=="}`:      {400, 0, "give one of them"},
		`{"topic":"a","payloadBase64":"?"}`:                       {400, 0, "no base 64"},
		`{"topic":"a","properties":{"payloadFormatIndicator":2}}`: {400, 0, "want 0 or 1"},
		`{"topic":"a","properties":{"responseTopic":""}}`:         {400, 0, "responseTopic is empty"},
		`{"topic":"a","properties":{"correlationData":"?"}}`:      {400, 0, "no base 64"},
		`{"topic":"a/+"}`:                    {400, mqtt.TopicNameInvalid, "wildcard"},
		`{}`:                                 {400, mqtt.ProtocolError, ""},
		`{"topic":"a\u0000"}`:                {400, mqtt.MalformedPacket, ""},
		`{"topic":"a/b/c/d/e"}`:              {400, mqtt.TopicNameInvalid, "too many levels"},
		`{"topic":"$delayed/x/t"}`:           {400, mqtt.TopicNameInvalid, "$delayed/SECONDS/TOPIC"},
		`{"topic":"$delayed/99999999999/t"}`: {503, mqtt.QuotaExceeded, "--max-delay"},
		`{"topic":"a","payloadBase64":"/w==","properties":{"payloadFormatIndicator":1}}`: {400, mqtt.PayloadFormatInvalid, "promises UTF-8"},
		`{"topic":"$SYS/x"}`: {403, mqtt.NotAuthorized, "only the server publishes"},
		`{"topic":"a","payload":"` + strings.Repeat("x", 2048) + `"}`:   {413, mqtt.PacketTooLarge, "--max-packet-size is 2048"},
		`{"topic":"` + strings.Repeat("x", 65536) + `"}`:                {400, 0, "topic has 65536 bytes"},
		`{"topic":"a","payload":"` + strings.Repeat("x", 80<<10) + `"}`: {413, 0, "the body may have"},
	} {
		var f httpapi.Failure
		if status := a.ask("POST", "/api/v1/publish", body, &f); status != want.status || f.ReasonCode != int(want.code) || !strings.Contains(f.Error, want.text) || (f.Reason == "") != (want.code == 0) {
			t.Errorf("%.100s: %d %+v, want %+v", body, status, f, want)
		}
	}
	kind := func(kind string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Content-Type", kind) }
	}
	a.refused(415, "must be application/json", "POST", "/api/v1/publish", `{"topic":"a"}`, kind("text/plain"))
	a.refused(415, "must be application/json", "POST", "/api/v1/publish", `{"topic":"a"}`, kind(""))
	if status := a.ask("POST", "/api/v1/publish", `{"topic":"a"}`, nil, kind("application/json; charset=utf-8")); status != 200 {
		t.Errorf("with a charset: %d", status)
	}
	a.refused(413, "the body may have", "POST", "/api/v1/publish", `{"topic":"a"`+strings.Repeat(" ", 80<<10)+`}`, func(r *http.Request) { r.ContentLength = -1 })
}

// Retained messages are listed in pages, and deleted by a filter, on disk when that is answered.
func TestRetained(t *testing.T) {
	t.Parallel()
	a := start(t)
	c := mqtttest.Connect(t, a.Addr, mqtttest.ClientID("c"))
	for _, name := range []string{"a/1", "a/2", "a/3", "b/1"} {
		c.Publish(mqtttest.Message{Topic: name, Payload: "of " + name, QoS: 1, Retain: true})
	}
	c.Publish(mqtttest.Message{Topic: "b/2", Payload: "\xff", QoS: 1, Retain: true})
	list := func(query string) (got []string) {
		after := ""
		for {
			var page httpapi.RetainedPage
			if status := a.ask("GET", "/api/v1/retained?"+query+"&after="+after, nil, &page); status != 200 {
				t.Fatalf("%s: %d", query, status)
			}
			for _, m := range page.Retained {
				text := m.Topic
				if m.Payload != nil {
					text += "=" + *m.Payload
				}
				if m.PayloadBase64 != nil {
					text += "=base64:" + *m.PayloadBase64
				}
				got = append(got, text)
			}
			if after = page.Next; after == "" {
				return got
			}
		}
	}
	for query, want := range map[string][]string{
		"": {"a/1", "a/2", "a/3", "b/1", "b/2"}, "limit=2": {"a/1", "a/2", "a/3", "b/1", "b/2"}, "filter=a%2F%2B&limit=1": {"a/1", "a/2", "a/3"},
		"filter=b%2F%23&payload=true": {"b/1=of b/1", "b/2=base64:/w=="}, "filter=none": nil, "filter=a%2F2": {"a/2"},
	} {
		if got := list(query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	a.refused(400, "want a topic filter", "GET", "/api/v1/retained?filter=a%23", nil)
	a.refused(400, "shared subscription", "GET", "/api/v1/retained?filter=%24share%2Fg%2Fa", nil)
	a.refused(400, "the parameter filter is missing", "DELETE", "/api/v1/retained", nil)
	a.refused(400, "from 1 to 10000", "DELETE", "/api/v1/retained?filter=%23&limit=10001", nil)

	var d httpapi.Deleted
	if status := a.ask("DELETE", "/api/v1/retained?filter=a%2F%2B&limit=2", nil, &d); status != 200 || d.Deleted != 2 || d.Next == "" {
		t.Errorf("%d %+v", status, d)
	}
	if status := a.ask("DELETE", "/api/v1/retained?filter=a%2F%2B&after="+d.Next, nil, &d); status != 200 || d.Deleted != 1 {
		t.Errorf("%d %+v", status, d)
	}
	d = httpapi.Deleted{}
	if status := a.ask("DELETE", "/api/v1/retained?filter=%24SYS%2F%23&limit=10000", nil, &d); status != 200 || d.Deleted != 0 || d.Denied == 0 {
		t.Errorf("the server's own: %d %+v", status, d)
	}
	a.Restart()
	if got := list(""); !slices.Equal(got, []string{"b/1", "b/2"}) {
		t.Errorf("after a restart: %q", got)
	}
}

// secured is a server with an administrator, olga, who may publish and read below her/, and a
// client, press, who is none.
func secured(t *testing.T) *api {
	t.Helper()
	dir := t.TempDir()
	users, rules := filepath.Join(dir, "users"), filepath.Join(dir, "policy.yaml")
	for _, user := range []string{"olga", "press"} {
		if err := passwd.Set(users, user, []byte("secret of "+user), passwd.MinIterations); err != nil {
			t.Fatal(err)
		}
	}
	const policy = `rules:
- principals: {usernames: [press]}
  brokerResources: [{method: Connect}, {method: Publish, topics: ["#"]}]
- principals: {usernames: [olga]}
  brokerResources: [{method: Publish, topics: ["her/#"]}, {method: Subscribe, topics: ["her/#"]}]
groups: {operators: {usernames: [olga], quotas: {reserve: true}}}
`
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, func(c *server.Config) {
		c.Policy, c.Login.PasswordFile, c.AuditLog = rules, users, filepath.Join(dir, "audit.log")
	})
}

// Administrators prove who they are, the policy says what they may publish, read and delete,
// and the audit log has each request.
func TestWhoMay(t *testing.T) {
	t.Parallel()
	a := secured(t)
	c := mqtttest.Connect(t, a.Addr, mqtttest.ClientID("c"), mqtttest.Credentials("press", "secret of press"))
	for _, name := range []string{"her/1", "his/1"} {
		c.Publish(mqtttest.Message{Topic: name, Payload: "x", QoS: 1, Retain: true})
	}
	a.refused(401, "an administrator's password", "GET", "/api/v1/clients", nil)
	a.as("stranger").refused(401, "an administrator's password", "GET", "/api/v1/clients", nil)
	a.as("press").refused(403, "the quota reserve", "DELETE", "/api/v1/clients/c", nil)
	olga := a.as("olga")
	var page httpapi.ClientPage
	if status := olga.ask("GET", "/api/v1/clients", nil, &page); status != 200 || len(page.Clients) != 1 || page.Clients[0].Principal != "user:press" {
		t.Errorf("%d %+v", status, page)
	}
	if status := olga.ask("POST", "/api/v1/publish", `{"topic":"her/2","payload":"y","retain":true}`, nil); status != 200 {
		t.Errorf("publishing what the policy allows: %d", status)
	}
	olga.refused(403, "the policy does not allow", "POST", "/api/v1/publish", `{"topic":"his/2"}`)
	olga.refused(403, "response topic", "POST", "/api/v1/publish", `{"topic":"her/2","properties":{"responseTopic":"his/2"}}`)
	var list httpapi.RetainedPage
	if status := olga.ask("GET", "/api/v1/retained?payload=true", nil, &list); status != 200 || len(list.Retained) != 3 {
		t.Fatalf("%d %+v", status, list)
	}
	for _, m := range list.Retained {
		if withheld := m.Topic == "his/1"; m.PayloadWithheld != withheld || (m.Payload == nil) != withheld {
			t.Errorf("%+v", m)
		}
	}
	if got := list.Retained[1]; got.Publisher != "user:olga" {
		t.Errorf("a message of the administrator's: %+v", got)
	}
	var d httpapi.Deleted
	if status := olga.ask("DELETE", "/api/v1/retained?filter=%23", nil, &d); status != 200 || d.Deleted != 2 || d.Denied != 1 {
		t.Errorf("%d %+v", status, d)
	}
	if status := olga.ask("DELETE", "/api/v1/clients/c", nil, nil); status != 200 {
		t.Errorf("%d", status)
	}
	log, err := os.ReadFile(a.Config.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"method":"GET","target":"/api/v1/clients","status":200,"owner":"user:olga"`,
		`"method":"POST","target":"/api/v1/publish","status":403,"owner":"user:olga","detail":"topic his/2"`,
		`"method":"DELETE","target":"/api/v1/retained?filter=%23","status":200,"owner":"user:olga"`,
		`"method":"DELETE","target":"/api/v1/clients/c","status":200,"owner":"user:olga"`,
		`"event":"kicked","client":"c"`,
	} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the audit log lacks %s:\n%s", want, log)
		}
	}
}

// Web pages are refused, also those with a name of their own for this machine.
func TestWebPagesAreRefused(t *testing.T) {
	t.Parallel()
	a := start(t)
	mqtttest.Connect(t, a.Addr, mqtttest.ClientID("c"))
	a.refused(403, "web pages", "DELETE", "/api/v1/clients/c", nil, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example.com") })
	a.refused(421, "the Host of the request", "DELETE", "/api/v1/clients/c", nil, func(r *http.Request) { r.Host = "evil.example.com" })
	if status := a.ask("GET", "/api/v1/clients/c", nil, nil); status != 200 {
		t.Errorf("%d", status)
	}
}

// Each request that the listener refuses is in the audit log, with who made it, as far as that
// is known, and without the password that it has shown.
func TestRefusedRequestsAreAudited(t *testing.T) {
	t.Parallel()
	a := secured(t)
	a.refused(401, "an administrator's password", "GET", "/api/v1/clients", nil)
	a.as("stranger").refused(401, "an administrator's password", "GET", "/api/v1/clients?limit=1", nil)
	a.as("press").refused(403, "the quota reserve", "DELETE", "/api/v1/clients/c", nil)
	olga := a.as("olga")
	olga.refused(403, "web pages", "DELETE", "/api/v1/clients/c", nil, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example.com") })
	olga.refused(421, "the Host of the request", "POST", "/api/v1/publish", nil, func(r *http.Request) { r.Host = "evil.example.com" })
	log, err := os.ReadFile(a.Config.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"method":"GET","target":"/api/v1/clients","status":401,"reason":"the client has shown no credentials"`,
		`"method":"GET","target":"/api/v1/clients?limit=1","status":401,"reason":"the user name or the password is wrong"`,
		`"method":"DELETE","target":"/api/v1/clients/c","status":403,"owner":"user:press","reason":"its quota has no reserve"`,
		`"method":"DELETE","target":"/api/v1/clients/c","status":403,"reason":"a web page of another origin has made it"`,
		`"method":"POST","target":"/api/v1/publish","status":421,"reason":"its Host is not this machine"`,
	} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the audit log lacks %s:\n%s", want, log)
		}
	}
	if n := strings.Count(string(log), `"event":"request refused"`); n != 5 {
		t.Errorf("%d refusals are in the audit log, want 5:\n%s", n, log)
	}
	if strings.Contains(string(log), "secret of") {
		t.Errorf("the audit log has a password:\n%s", log)
	}
}

// What there is not is said in JSON, with what there is.
func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.refused(404, "/api/v1/openapi.json lists what there is", "GET", "/api/v2/clients", nil)
	a.refused(405, "takes GET and DELETE", "POST", "/api/v1/clients/c", nil)
	a.refused(405, "takes POST", "GET", "/api/v1/publish", nil)
	a.refused(400, "the query of the address", "GET", "/api/v1/clients?limit=%25;a", nil)
	var d map[string]any
	if status := a.ask("GET", "/api/v1/openapi.json", nil, &d); status != 200 || d["openapi"] != "3.1.0" {
		t.Errorf("%d %v", status, d["openapi"])
	}
}

// The description is served as it is in the source, compressed to a client that accepts that.
func TestDescriptionIsTheSource(t *testing.T) {
	t.Parallel()
	a := start(t)
	source, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, accept := range []string{"identity", "gzip"} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+a.AdminAddr().String()+"/api/v1/openapi.json", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", accept)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && accept == "gzip" {
			got, err = zipped.Plain(got)
		}
		if err != nil || !bytes.Equal(got, source) {
			t.Errorf("%s: %d bytes, and openapi.json has %d (%v): run go generate ./internal/httpapi", accept, len(got), len(source), err)
		}
	}
}

// A client ID of every character that MQTT allows is found by its address.
func TestOddClientIDs(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, id := range []string{"a/b", "%2F", "a b", "ä+#?&=", "..", "a//b", "\U0010FFFF"} {
		mqtttest.Connect(t, a.Addr, mqtttest.ClientID(id))
		var c httpapi.Client
		if status := a.ask("GET", "/api/v1/clients/"+strings.ReplaceAll(url.PathEscape(id), ".", "%2E"), nil, &c); status != 200 || c.ClientID != id {
			t.Errorf("%q: %d %+v", id, status, c)
		}
	}
}

// awaitAway waits until a client counts as away: its connection ends after the answer.
func awaitAway(t *testing.T, a *api, id string) {
	t.Helper()
	for deadline := time.Now().Add(mqtttest.Deadline); ; time.Sleep(5 * time.Millisecond) {
		var c httpapi.Client
		if status := a.ask("GET", "/api/v1/clients/"+url.PathEscape(id), nil, &c); status != 200 || !c.Connected {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the client %s is connected still", id)
		}
	}
}
