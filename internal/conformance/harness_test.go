package conformance

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

type (
	client  = mqtttest.Client
	message = mqtttest.Message
	sub     = mqtttest.Sub
)

// node is one server on one data directory.
type node struct {
	*testserver.Server
	t *testing.T
}

// start runs a server until the test ends, with every setting at its default unless
// change sets it.
func start(t *testing.T, change ...func(*server.Config)) *node {
	t.Helper()
	return &node{testserver.Start(t, change...), t}
}

func (n *node) dial() *client {
	n.t.Helper()
	return mqtttest.Dial(n.t, n.Addr)
}

func (n *node) connect(opts ...mqtttest.Option) *client {
	n.t.Helper()
	return mqtttest.Connect(n.t, n.Addr, opts...)
}

// bothVersions runs a test once for each version that the port speaks.
func bothVersions(t *testing.T, test func(t *testing.T, v mqtt.Version)) {
	t.Helper()
	for _, v := range []mqtt.Version{mqtt.V311, mqtt.V5} {
		t.Run(versionName(v), func(t *testing.T) {
			t.Parallel()
			test(t, v)
		})
	}
}

func versionName(v mqtt.Version) string {
	if v == mqtt.V311 {
		return "3.1.1"
	}
	return "5"
}

// letPass waits for time itself to go by. It is for tests of what happens after a
// time, never for waiting until something else is done.
func letPass(d time.Duration) { time.Sleep(d) }

// numbered are n messages to a topic that say "0", "1", "2" …
func numbered(topic string, qos byte, n int) []message {
	messages := make([]message, n)
	for i := range messages {
		messages[i] = message{Topic: topic, Payload: fmt.Sprint(i), QoS: qos}
	}
	return messages
}

// counted are the payloads of numbered messages from to to-1.
func counted(from, to int) []string {
	var payloads []string
	for i := from; i < to; i++ {
		payloads = append(payloads, fmt.Sprint(i))
	}
	return payloads
}

func publishAll(c *client, messages []message) { c.PublishAll(messages) }

// collect returns what a client gets: at least n messages, if it takes the
// whole deadline, and whatever came with them that should not have.
func collect(c *client, n int) []message {
	var got []message
	for began := time.Now(); len(got) < n && time.Since(began) < mqtttest.Deadline; {
		got = append(got, c.Collect()...)
	}
	return append(got, c.Collect()...)
}

func wantPayloads(t *testing.T, got []message, want []string) {
	t.Helper()
	if p := mqtttest.Payloads(got); !slices.Equal(p, want) {
		t.Fatalf("got payloads %q, want %q", p, want)
	}
}

// wantContent checks that a message arrived as it was published, to the last
// property.
func wantContent(t *testing.T, got, want message) {
	t.Helper()
	if got, want := got.Content(), want.Content(); !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func wantCode(t *testing.T, what string, got, want mqtt.ReasonCode) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got 0x%02x %v, want 0x%02x %v", what, byte(got), got, byte(want), want)
	}
}

// wantReason checks that a refusal explains itself.
func wantReason[S ~string | ~[]byte](t *testing.T, what string, reason S) {
	t.Helper()
	if len(reason) == 0 {
		t.Errorf("%s: got no Reason String", what)
	}
}

// wantSetting checks that a Reason String names the setting that was reached.
func wantSetting[S ~string | ~[]byte](t *testing.T, what string, reason S, setting string) {
	t.Helper()
	if !strings.Contains(string(reason), setting) {
		t.Errorf("%s: got the Reason String %q, want the setting %s in it", what, reason, setting)
	}
}
