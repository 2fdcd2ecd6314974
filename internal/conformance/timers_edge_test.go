package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

const noneListed = "*1\r\n*0\r\n"

// awaitNone awaits that no timer of the requester's principal is left.
func (r *requester) awaitNone() {
	r.t.Helper()
	for deadline := time.Now().Add(mqtttest.Deadline); ; letPass(10 * time.Millisecond) {
		got := r.do("TIMERS", "").Payload
		if got == noneListed {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("timers are left: %q", got)
		}
	}
}

// A timer at QoS 0 that is refused is dropped, as there is no answer to it, and the connection
// goes on.
func TestRefusedTimersAtQoS0AreDropped(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxDelay, c.Limits.MaxTimers = time.Hour, 1 })
	r := n.requester()
	r.Subscribe("out", 0)
	r.Publish(named("kept", after(time.Hour, message{Topic: "out"})))
	for _, user := range [][][2]string{
		{{"holdfast-deliver-after", "-1"}}, {{"holdfast-deliver-after", "3600001"}}, {{"holdfast-deliver-after", "1"}, {"holdfast-deliver-at", "1"}},
		{{"holdfast-deliver-after", "1"}}, // one too many
	} {
		r.Publish(message{Topic: "out", Payload: fmt.Sprint(user), User: user})
	}
	r.want(ok, "SET", "k", "v") // the list shows what is on disk, as this is then, and what came before it
	if got := r.do("TIMERS", "").Payload; strings.Count(got, "out") != 1 || !strings.Contains(got, "kept") {
		t.Errorf("waiting: %q", got)
	}
	r.want(":1\r\n", "CANCEL", "kept")
	r.Quiet()
}

// A timer with an empty message and RETAIN ends the retained message when it is due.
func TestTimerEndsARetainedMessage(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	r.Publish(message{Topic: "out", Payload: "x", QoS: 1, Retain: true})
	r.Publish(named("a", after(long, message{Topic: "out", QoS: 1, Retain: true})))
	r.Subscribe("out", 1)
	if m := r.Receive(); m.Payload != "x" || !m.Retain {
		t.Errorf("before it is due: %v", m)
	}
	r.Unsubscribe("out")
	r.Publish(named("a", after(0, message{Topic: "out", QoS: 1, Retain: true})))
	r.awaitNone()
	r.Subscribe("out", 1)
	r.Quiet()
}

// A prefix is no pattern: what would be a wildcard elsewhere stands for itself.
func TestTimersAreListedByPrefix(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	ids := []string{"a*", "ab", "a", "a?", "a#", "b", "a\n", "ä", "A"}
	for _, id := range ids {
		r.Publish(named(id, after(long, message{Topic: "out", QoS: 1})))
	}
	for prefix, want := range map[string]int{"": 9, "a": 6, "a*": 1, "a?": 1, "*": 0, "#": 0, "a\n": 1, "\xc3": 1, "\xff\xff": 0, strings.Repeat("x", 256): 0} {
		if got := r.do("TIMERS", prefix).Payload; strings.Count(got, "$3\r\nout\r\n") != want {
			t.Errorf("TIMERS %q: %q, want %d", prefix, got, want)
		}
	}
	r.want("-ERR syntax error\r\n", "TIMERS", strings.Repeat("x", 257))
	r.want(":0\r\n", "CANCEL", "a\xff")
	for _, id := range ids {
		r.want(":1\r\n", "CANCEL", id)
	}
	r.awaitNone()
}

// A timer that is cancelled while it comes due is either cancelled or delivered, and the reply
// says which.
func TestTimerIsCancelledOrDelivered(t *testing.T) {
	t.Parallel()
	n := start(t)
	r, listener := n.requester(), n.connect()
	listener.Subscribe("out", 1)
	delivered := map[string]bool{}
	for i := range 100 {
		id := fmt.Sprint(i)
		r.Publish(named(id, after(time.Duration(i%4)*10*time.Millisecond, message{Topic: "out", Payload: id, QoS: 1})))
		switch got := r.do("CANCEL", id).Payload; got {
		case ":0\r\n":
			delivered[id] = true
		case ":1\r\n":
		default:
			t.Fatalf("got %q", got)
		}
	}
	r.awaitNone()
	r.Publish(message{Topic: "out", Payload: "the last", QoS: 1})
	got := map[string]bool{}
	for m := listener.Receive(); m.Payload != "the last"; m = listener.Receive() {
		if got[m.Payload] {
			t.Errorf("%s came twice", m.Payload)
		}
		got[m.Payload] = true
	}
	if !maps.Equal(got, delivered) {
		t.Errorf("delivered %v, by the replies %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(delivered)))
	}
}

// Each principal has timers of its own: another one neither lists, cancels nor replaces them, and
// every client of the principal does.
func TestTimersOfAnotherPrincipal(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Auth = trusting{} })
	press, same, lathe := n.requester(as("press")), n.requester(as("press")), n.requester(as("lathe"))
	press.Publish(named("a", after(long, message{Topic: "press", QoS: 1})))
	lathe.want(noneListed, "TIMERS", "")
	lathe.want(":0\r\n", "CANCEL", "a")
	if got := lathe.txn("CANCEL a"); got != "*3\r\n:1\r\n*0\r\n*1\r\n:0\r\n" {
		t.Errorf("a TXN of another principal: %q", got)
	}
	lathe.Publish(named("a", after(long, message{Topic: "lathe", QoS: 1})))
	for r, topic := range map[*requester]string{press: "press", same: "press", lathe: "lathe"} {
		if got := r.do("TIMERS", "").Payload; strings.Count(got, "*3\r\n") != 1 || !strings.Contains(got, "$5\r\n"+topic+"\r\n") {
			t.Errorf("%s: %q", topic, got)
		}
	}
	same.want(":1\r\n", "CANCEL", "a")
	press.want(noneListed, "TIMERS", "")
	lathe.want(":1\r\n", "CANCEL", "a")
}

// A timer needs the permission to publish its message when it is set, in whatever way that is
// done, and again when it is due.
func TestPolicyOfTimers(t *testing.T) {
	t.Parallel()
	rules := func(topics string) string {
		return "rules:" + everything("admin") + `
- principals: {usernames: [press]}
  brokerResources:
  - method: Connect
  - {method: Publish, topics: [` + topics + invokeTopic + `]}
  - {method: Subscribe, topics: ["answers/#", "clients/#"]}`
	}
	n := startGoverned(t, rules(`"up/#", `), func(c *server.Config) { c.Limits.QueueFull, c.Limits.MaxQueued = limits.Reject, 1 })
	away := n.connect(as("admin"), mqtttest.Persistent("away"))
	away.Subscribe("#", 1)
	away.Disconnect()
	away.AwaitEnd()
	press := n.requester(as("press"))
	for name, m := range map[string]message{
		"another topic":            after(time.Millisecond, message{Topic: "down"}),
		"another topic, long past": {Topic: "down", User: [][2]string{{"holdfast-deliver-at", "0"}}},
		"a delayed topic":          {Topic: "$delayed/1/down"},
		"another response topic":   after(time.Millisecond, message{Topic: "up/1", ResponseTopic: new("down")}),
		"a topic of the server":    after(time.Millisecond, message{Topic: "$SYS/broker/x"}),
	} {
		for _, m.QoS = range []byte{0, 1, 2} {
			if m.QoS == 0 {
				press.Publish(m)
			} else if ack := press.Offer(m); ack.Code != mqtt.NotAuthorized || len(ack.ReasonString) == 0 {
				t.Errorf("%s at QoS %d: 0x%02x %q", name, m.QoS, byte(ack.Code), ack.ReasonString)
			}
		}
	}
	if got := press.txn("PUBLISH up/1 x USER holdfast-deliver-after 1 PUBLISH down x USER holdfast-deliver-after 1"); !strings.HasPrefix(got, "-ERR operation 2: ") {
		t.Errorf("a TXN: %q", got)
	}
	press.want(noneListed, "TIMERS", "")

	// Given a timer that is due and finds the queue full, when its client may not publish to the
	// topic any more, it is dropped.
	n.connect(as("admin")).Publish(message{Topic: "up/first", QoS: 1})
	press.Publish(named("a", after(0, message{Topic: "up/second", QoS: 1})))
	n.govern(rules(""))
	away = n.connect(as("admin"), mqtttest.Persistent("away"), mqtttest.Resume())
	if m := away.Receive(); m.Topic != "up/first" {
		t.Errorf("got %v", m)
	}
	press.awaitNone()
	away.Quiet()
}

// A will cannot be a timer: CONNECT is refused rather than the request ignored. The ID alone asks
// for nothing.
func TestWillIsNoTimer(t *testing.T) {
	t.Parallel()
	n := start(t)
	for name, will := range map[string]message{
		"an interval":                     after(time.Minute, message{Topic: "out"}),
		"an interval that cannot be read": {Topic: "out", User: [][2]string{{"holdfast-deliver-after", "soon"}}},
		"a time":                          {Topic: "out", User: [][2]string{{"holdfast-deliver-at", "2100-01-01T00:00:00Z"}}},
		"both":                            after(time.Minute, message{Topic: "out", User: [][2]string{{"holdfast-deliver-at", "0"}}}),
		"a delayed topic":                 {Topic: "$delayed/5/out"},
		"a malformed delayed topic":       {Topic: "$delayed/out"},
	} {
		ack := mqtttest.Refused(t, n.Addr, mqtt.ImplementationSpecificError, mqtttest.Will(will, 0))
		if !strings.Contains(ack.ReasonString, "Will Delay Interval") {
			t.Errorf("%s: refused with %q", name, ack.ReasonString)
		}
	}
	mqtttest.Refused(t, n.Addr, mqtt.ServerUnavailable, mqtttest.V311(), mqtttest.Will(message{Topic: "$delayed/5/out"}, 0))
	listener := n.connect()
	listener.Subscribe("out", 1)
	n.connect(mqtttest.Will(named("a", message{Topic: "out", Payload: "gone", QoS: 1}), 0)).Drop()
	if m := listener.Receive(); m.Payload != "gone" {
		t.Errorf("got %v", m)
	}
}
