package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// after is a message that is to be delivered later.
func after(d time.Duration, m message) message {
	m.User = append(slices.Clone(m.User), [2]string{"holdfast-deliver-after", strconv.FormatInt(d.Milliseconds(), 10)})
	return m
}

// named gives the timer of a message an ID.
func named(id string, m message) message {
	m.User = append(slices.Clone(m.User), [2]string{"holdfast-timer-id", id})
	return m
}

// long is an interval that no test waits for.
const long = time.Hour

// noTimers awaits that no timer is left.
func (n *node) noTimers() {
	n.t.Helper()
	r := n.requester()
	for deadline := time.Now().Add(mqtttest.Deadline); ; {
		got := r.do("TIMERS", "").Payload
		if got == "*1\r\n*0\r\n" {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("timers are left: %q", got)
		}
		letPass(10 * time.Millisecond)
	}
}

// A message with either property is delivered at its time and not before, once, with all of
// its other properties, at the QoS with which it was published.
func TestTimerDelivers(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	c.Subscribe("out/#", 2)
	sent := time.Now()
	for qos := range byte(3) {
		c.Publish(after(300*time.Millisecond, message{Topic: fmt.Sprintf("out/%d", qos), Payload: "later", QoS: qos, ContentType: new("t"), User: [][2]string{{"a", "b"}}}))
	}
	c.Publish(message{Topic: "out/at", Payload: "at", QoS: 1, User: [][2]string{{"holdfast-deliver-at", time.Now().Add(400 * time.Millisecond).UTC().Format(time.RFC3339Nano)}}})
	c.Publish(message{Topic: "out/ms", Payload: "ms", QoS: 1, User: [][2]string{{"holdfast-deliver-at", fmt.Sprint(time.Now().Add(400 * time.Millisecond).UnixMilli())}}})
	got := map[string]message{}
	for range 5 {
		m := c.Receive()
		got[m.Topic] = m
		if d := time.Since(sent); d < 300*time.Millisecond {
			t.Errorf("%s came after %v", m.Topic, d)
		}
	}
	for qos := range byte(3) {
		m := got[fmt.Sprintf("out/%d", qos)]
		if b, _ := m.UserProp("a"); m.Payload != "later" || m.QoS != qos || m.ContentType == nil || *m.ContentType != "t" || b != "b" || len(m.User) != 1 {
			t.Errorf("at QoS %d: %v", qos, m)
		}
	}
	if got["out/at"].Payload != "at" || got["out/ms"].Payload != "ms" {
		t.Errorf("got %v", got)
	}
	c.Quiet()
}

// A time that has passed is now; bounds and nonsense are refused, with a reason.
func TestTimerTimesAreJudged(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxDelay = time.Hour })
	c := n.connect()
	c.Subscribe("out", 1)
	const a, at, id = "holdfast-deliver-after", "holdfast-deliver-at", "holdfast-timer-id"
	in := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }
	for _, tc := range []struct {
		name string
		user [][2]string
		code mqtt.ReasonCode
	}{
		{"zero", [][2]string{{a, "0"}}, mqtt.Success},
		{"long past", [][2]string{{at, "0"}}, mqtt.Success},
		{"before 1970", [][2]string{{at, "1960-01-02t03:04:05z"}}, mqtt.Success},
		{"an hour of one digit", [][2]string{{at, "1960-01-02T3:04:05Z"}}, mqtt.ImplementationSpecificError},
		{"a comma", [][2]string{{at, "1960-01-02T03:04:05,5Z"}}, mqtt.ImplementationSpecificError},
		{"an offset of a day", [][2]string{{at, "1960-01-02T03:04:05+24:00"}}, mqtt.ImplementationSpecificError},
		{"the longest", [][2]string{{a, "3600000"}, {id, "longest"}}, mqtt.Success},
		{"one more", [][2]string{{a, "3600001"}}, mqtt.QuotaExceeded},
		{"just within", [][2]string{{at, in(59 * time.Minute)}, {id, "within"}}, mqtt.Success},
		{"beyond", [][2]string{{at, in(61 * time.Minute)}}, mqtt.QuotaExceeded},
		{"the year 9999", [][2]string{{at, "9999-12-31T23:59:59Z"}}, mqtt.QuotaExceeded},
		{"2^63-8", [][2]string{{at, "9223372036854775800"}}, mqtt.QuotaExceeded},
		{"2^63", [][2]string{{a, "9223372036854775808"}}, mqtt.ImplementationSpecificError},
		{"2^63 as a time", [][2]string{{at, "9223372036854775808"}}, mqtt.ImplementationSpecificError},
		{"negative", [][2]string{{a, "-1"}}, mqtt.ImplementationSpecificError},
		{"no number", [][2]string{{a, "NaN"}}, mqtt.ImplementationSpecificError},
		{"a fraction", [][2]string{{a, "1.5"}}, mqtt.ImplementationSpecificError},
		{"a duration", [][2]string{{a, "5s"}}, mqtt.ImplementationSpecificError},
		{"nothing", [][2]string{{a, ""}}, mqtt.ImplementationSpecificError},
		{"no time", [][2]string{{at, "tomorrow"}}, mqtt.ImplementationSpecificError},
		{"a very long time", [][2]string{{at, strings.Repeat("9", 60_000)}}, mqtt.ImplementationSpecificError},
		{"both", [][2]string{{a, "1"}, {at, "1"}}, mqtt.ImplementationSpecificError},
		{"twice", [][2]string{{a, "1"}, {a, "1"}}, mqtt.ImplementationSpecificError},
		{"an empty ID", [][2]string{{a, "3600000"}, {id, ""}}, mqtt.ImplementationSpecificError},
		{"the longest ID", [][2]string{{a, "3600000"}, {id, strings.Repeat("i", 256)}}, mqtt.Success},
		{"an ID that is too long", [][2]string{{a, "3600000"}, {id, strings.Repeat("i", 257)}}, mqtt.ImplementationSpecificError},
		{"two IDs", [][2]string{{a, "3600000"}, {id, "i"}, {id, "i"}}, mqtt.ImplementationSpecificError},
		{"an ID without a time", [][2]string{{id, ""}}, mqtt.Success},
	} {
		ack := c.Offer(message{Topic: "out", Payload: tc.name, QoS: 1, User: tc.user})
		if ack.Code != tc.code || tc.code.Failed() && len(ack.ReasonString) == 0 {
			t.Errorf("%s: 0x%02x %q, want 0x%02x", tc.name, byte(ack.Code), ack.ReasonString, byte(tc.code))
		}
	}
	got := mqtttest.Payloads(c.ReceiveN(4))
	slices.Sort(got)
	if want := []string{"an ID without a time", "before 1970", "long past", "zero"}; !slices.Equal(got, want) {
		t.Errorf("delivered: %q, want %q", got, want)
	}
	r := n.requester()
	if got := r.do("TIMERS", "").Payload; strings.Count(got, "\r\n$3\r\nout\r\n") != 3 || !strings.Contains(got, "longest") || !strings.Contains(got, "within") {
		t.Errorf("waiting: %q", got)
	}
}

// A timer has an ID by which it is found, cancelled and replaced; of two with one ID the later
// one counts, so that a publish can be repeated.
func TestTimerIDs(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester()
	r.Subscribe("out", 1)
	r.want(":0\r\n", "CANCEL", "a")
	r.Publish(named("a", after(long, message{Topic: "out", Payload: "never", QoS: 1})))
	r.Publish(named("b", after(long, message{Topic: "out", Payload: "never", QoS: 2})))
	r.Publish(named("c", after(long, message{Topic: "out", Payload: "never", QoS: 1, Retain: true})))
	if got := r.do("TIMERS", "").Payload; strings.Count(got, "*3\r\n") != 4 || !strings.HasPrefix(got, "*1\r\n*3\r\n*3\r\n$1\r\na\r\n$13\r\n") {
		t.Errorf("got %q", got)
	}
	if got := r.do("TIMERS", "b").Payload; !strings.HasPrefix(got, "*1\r\n*1\r\n*3\r\n$1\r\nb\r\n") {
		t.Errorf("got %q", got)
	}
	if got := r.do("TIMERS", "", "b").Payload; !strings.HasPrefix(got, "*1\r\n*1\r\n*3\r\n$1\r\nc\r\n") {
		t.Errorf("got %q", got)
	}
	r.want(":1\r\n", "CANCEL", "a")
	r.want(":0\r\n", "CANCEL", "a")
	r.Publish(named("b", after(10*time.Millisecond, message{Topic: "out", Payload: "replaced", QoS: 1})))
	if m := r.Receive(); m.Payload != "replaced" {
		t.Errorf("got %v", m)
	} else if id, _ := m.UserProp("holdfast-timer-id"); id != "b" {
		t.Errorf("its ID came as %q", id)
	}
	r.want(":1\r\n", "CANCEL", "c")
	r.want("-ERR wrong number of arguments\r\n", "CANCEL")
	r.want("-ERR syntax error\r\n", "CANCEL", "")
	r.want("-ERR syntax error\r\n", "CANCEL", strings.Repeat("i", 257))
	r.want("-ERR wrong number of arguments\r\n", "TIMERS")
	r.want("-ERR syntax error\r\n", "TIMERS", "", "")
	n.noTimers()
	r.Quiet()
}

// Pages of a list go on behind the last ID.
func TestTimersAreListedInPages(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester(mqtttest.MaximumPacketSize(4000))
	want := 100
	for i := range want {
		r.Publish(named(fmt.Sprintf("id/%03d", i), after(long, message{Topic: strings.Repeat("t", 200), QoS: 1})))
	}
	pages, listed, args := 0, 0, []string{"TIMERS", "id/"}
	for {
		got := r.do(args...).Payload
		pages++
		listed += strings.Count(got, "$200\r\n")
		if strings.HasPrefix(got, "*1\r\n") {
			break
		}
		lines := strings.Split(got, "\r\n")
		args = []string{"TIMERS", "id/", lines[len(lines)-2]}
	}
	if listed != want || pages < 5 {
		t.Errorf("%d timers on %d pages, want %d", listed, pages, want)
	}
	small := n.requester(mqtttest.MaximumPacketSize(300))
	if got := small.do("TIMERS", "").Payload; !strings.HasPrefix(got, "-ERR a key is too long") {
		t.Errorf("to a client that takes no timer: %q", got)
	}
}

// Timers survive a restart, and those that became due meanwhile are delivered after it.
func TestTimersSurviveARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect(mqtttest.Persistent("c"))
	c.Subscribe("out", 2)
	c.Disconnect() // so that it does not get a message that is due before the server stops
	c = n.connect()
	c.Publish(named("far", after(long, message{Topic: "out", Payload: "far", QoS: 2})))
	c.Publish(named("due", after(300*time.Millisecond, message{Topic: "out", Payload: "due", QoS: 2})))
	n.Stop()
	letPass(400 * time.Millisecond)
	n.StartAgain()
	c = n.connect(mqtttest.Persistent("c"), mqtttest.Resume())
	if m := c.Receive(); m.Payload != "due" {
		t.Errorf("got %v", m)
	}
	r := n.requester()
	r.want(":1\r\n", "CANCEL", "far")
	r.want(":0\r\n", "CANCEL", "due")
	n.Restart()
	n.noTimers()
	n.connect(mqtttest.Persistent("c"), mqtttest.Resume()).Quiet()
}

// A transaction sets timers in the same step as it writes keys, or not at all.
func TestTransactionSetsTimers(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTimers = 2 })
	r := n.requester()
	r.Subscribe("out/#", 1)
	if got := r.txn("SET k 1 PUBLISH out/later 1 USER holdfast-deliver-after 200 USER holdfast-timer-id t PUBLISH out/now 2 PUBLISH out/far 3 USER holdfast-deliver-after 3600000 USER holdfast-timer-id far"); !done(got) {
		t.Fatalf("got %q", got)
	}
	const far, quota = "USER holdfast-deliver-after 3600000", "the quota has been exceeded"
	for _, tc := range []struct{ text, want string }{
		{"SET k 2 PUBLISH out/x 1 PUBLISH out/x 2 USER holdfast-deliver-after x", operationFailure(3, "a property of the message is invalid")},
		{"SET k 2 PUBLISH out/x 1 PUBLISH out/x 2 USER holdfast-deliver-after 99999999999999", operationFailure(3, quota)},
		{"SET k 2 PUBLISH out/y 1 PUBLISH out/x 1 " + far + " USER holdfast-timer-id far PUBLISH out/x 2 " + far + " USER holdfast-timer-id far", operationFailure(4, "an earlier operation has the same timer")},
		{"SET k 2 CANCEL far CANCEL other CANCEL far", operationFailure(4, "an earlier operation has the same timer")},
		{"CANCEL far PUBLISH out/x 2 " + far + " USER holdfast-timer-id far SET k 2", operationFailure(2, "an earlier operation has the same timer")},
		{"IF k ABSENT PUBLISH out/x 1 USER holdfast-deliver-after 1 USER holdfast-timer-id far", ""},
		{"SET k 2 FT 9999999999999:0:x PUBLISH out/x 1 USER holdfast-deliver-after 1 USER holdfast-timer-id far", ""},
		{"SET k 2 PUBLISH out/y 1 PUBLISH out/x 1 " + far + " PUBLISH out/x 1 " + far + " PUBLISH out/x 1 " + far, quota},
	} {
		if got := r.txn(tc.text); !strings.Contains(got, tc.want) || done(got) {
			t.Errorf("TXN %s: %q, want %q", tc.text, got, tc.want)
		}
	}
	r.want(blob("1"), "GET", "k")
	got := []string{r.Receive().Topic, r.Receive().Topic}
	if slices.Sort(got); !slices.Equal(got, []string{"out/later", "out/now"}) {
		t.Errorf("got %q", got)
	}
	r.want(":1\r\n", "CANCEL", "far")
	n.noTimers()
	r.Quiet()
}

// A transaction cancels timers in the same step as it does all else, or not at all, and says which
// of them there were. Its cancels make no room for its own timers.
func TestTransactionCancelsTimers(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTimers = 2 })
	r := n.requester()
	r.Subscribe("out/#", 1)
	const far = " USER holdfast-deliver-after 3600000 USER holdfast-timer-id "
	if got := r.txn("PUBLISH out/a a" + far + "a PUBLISH out/b b" + far + "b"); !done(got) {
		t.Fatalf("got %q", got)
	}
	for text, want := range map[string]string{
		"SET k 1 IF k EXISTS CANCEL a":                        "*4\r\n:-1\r\n:2\r\n$-1\r\n$-1\r\n",
		"SET k 1 CANCEL a PUBLISH out/# x":                    operationFailure(3, "the topic name is invalid"),
		"SET k 1 CANCEL a PUBLISH out/x x" + far + "c":        operationFailure(3, "the quota has been exceeded"),
		"SET k 1 CANCEL a CANCEL " + strings.Repeat("x", 257): operationFailure(3, "syntax error"),
		"SET k 1 CANCEL a CANCEL":                             operationFailure(3, "wrong number of arguments"),
		"SET k 1 CANCEL a CANCEL b CANCEL a":                  operationFailure(4, "an earlier operation has the same timer"),
		"SET k 1 FT 9999999999999:0:x CANCEL a":               operationFailure(1, statestore.TokenAhead.Text(false)),
	} {
		if got := r.txn(text); got != want {
			t.Errorf("TXN %s: %q, want %q", text, got, want)
		}
	}
	r.want("$-1\r\n", "GET", "k")
	if got := r.txn("SET k 1 CANCEL a CANCEL none ONCE k m"); !strings.HasPrefix(got, "*3\r\n:1\r\n*1\r\n$") || !strings.HasSuffix(got, "*2\r\n:1\r\n:0\r\n") {
		t.Errorf("got %q", got)
	}
	if got := r.txn("CANCEL b ONCE k m"); !strings.HasPrefix(got, "*2\r\n:0\r\n") {
		t.Errorf("done again: %q", got)
	}
	if got := r.txn("CANCEL a"); got != "*3\r\n:1\r\n*0\r\n*1\r\n:0\r\n" {
		t.Errorf("cancelled twice: %q", got)
	}
	if got := r.txn("CANCEL b PUBLISH out/c c" + far + "c"); got != "*3\r\n:1\r\n*0\r\n*1\r\n:1\r\n" {
		t.Errorf("got %q", got)
	}
	n.Restart()
	r = n.requester()
	if got := r.do("TIMERS", "").Payload; !strings.HasPrefix(got, "*1\r\n*1\r\n*3\r\n$1\r\nc\r\n") {
		t.Errorf("after a restart: %q", got)
	}
	r.want(":1\r\n", "CANCEL", "c")
}

// There are as many timers as there may be, of all clients and of one, and no more; a timer
// that is replaced needs no room, one that is cancelled makes some.
func TestTimersAreBounded(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTimers, c.Limits.MaxClientTimers = 3, 2 })
	one, two := n.requester(mqtttest.ClientID("one")), n.requester(mqtttest.ClientID("two"))
	set := func(r *requester, id string) mqtt.ReasonCode {
		return r.Offer(named(id, after(long, message{Topic: "out", QoS: 1}))).Code
	}
	for _, tc := range []struct {
		r    *requester
		id   string
		code mqtt.ReasonCode
	}{{one, "a", 0}, {one, "b", 0}, {one, "c", mqtt.QuotaExceeded}, {one, "a", 0}, {two, "d", 0}, {two, "e", mqtt.QuotaExceeded}} {
		if code := set(tc.r, tc.id); code != tc.code {
			t.Errorf("%s: 0x%02x, want 0x%02x", tc.id, byte(code), byte(tc.code))
		}
	}
	n.Restart()
	one, two = n.requester(mqtttest.ClientID("one")), n.requester(mqtttest.ClientID("two"))
	if set(one, "c") != mqtt.QuotaExceeded || set(two, "e") != mqtt.QuotaExceeded {
		t.Error("the bounds do not hold after a restart")
	}
	one.want(":1\r\n", "CANCEL", "a")
	if code := set(two, "e"); code != 0 {
		t.Errorf("after one was cancelled: 0x%02x", byte(code))
	}
}

// Timers are bounded in bytes.
func TestTimersAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTimerBytes = 10_000 })
	c := n.connect()
	code := mqtt.Success
	i := 0
	for ; i < 20 && code == mqtt.Success; i++ {
		code = c.Offer(after(long, message{Topic: "out", Payload: strings.Repeat("x", 1000), QoS: 1})).Code
	}
	if code != mqtt.QuotaExceeded || i < 7 || i > 10 {
		t.Errorf("number %d of a thousand bytes was answered with 0x%02x", i, byte(code))
	}
}

// A timer whose message would fill a queue that makes its publishers wait, waits as well, and
// then goes.
func TestTimerWaitsForRoom(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.QueueFull, c.Limits.MaxQueued = limits.Reject, 1 })
	away := n.connect(mqtttest.Persistent("away"))
	away.Subscribe("out", 1)
	away.Disconnect()
	c := n.requester()
	c.Publish(message{Topic: "out", Payload: "first", QoS: 1})
	c.Publish(named("t", after(0, message{Topic: "out", Payload: "second", QoS: 1})))
	letPass(300 * time.Millisecond)
	if got := c.do("TIMERS", "").Payload; !strings.Contains(got, "$1\r\nt\r\n") {
		t.Errorf("it is gone: %q", got)
	}
	away = n.connect(mqtttest.Persistent("away"), mqtttest.Resume())
	if got := mqtttest.Payloads(away.ReceiveN(2)); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("got %q", got)
	}
	n.noTimers()
}

// A timer whose queue is full by default ends the session, as a publish does.
func TestTimerEndsAFullSession(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxQueued = 1 })
	away := n.connect(mqtttest.Persistent("away"))
	away.Subscribe("out", 1)
	away.Disconnect()
	other := n.connect()
	other.Subscribe("out", 0) // so that it has no queue
	other.Publish(message{Topic: "out", Payload: "first", QoS: 1})
	other.Publish(after(0, message{Topic: "out", Payload: "second", QoS: 1}))
	if got := mqtttest.Payloads(other.ReceiveN(2)); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("got %q", got)
	}
	n.noTimers()
	away = n.dial()
	if ack := away.Connect(mqtttest.Persistent("away"), mqtttest.Resume()); ack.SessionPresent {
		t.Error("the session has not ended")
	}
}

// What a timer publishes has No Local, and its expiry begins when it is due.
func TestTimerIsPublishedLikeAnyMessage(t *testing.T) {
	t.Parallel()
	n := start(t)
	c, other := n.connect(), n.connect()
	c.SubscribeWith(0, sub{Filter: "out", QoS: 1, NoLocal: true})
	other.Subscribe("out", 1)
	// If its expiry began when it is set, it would be over when it is due.
	c.Publish(after(5500*time.Millisecond, message{Topic: "out", Payload: "x", QoS: 1, Retain: true, Expiry: new(uint32(5))}))
	if m := other.Receive(); m.Expiry == nil || *m.Expiry > 5 || m.Retain || m.Payload != "x" {
		t.Errorf("got %v, expiry %v", m, m.Expiry)
	}
	c.Quiet()
}

// A timer makes its message the retained one of its topic.
func TestTimerIsRetained(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.connect()
	c.Publish(after(0, message{Topic: "out", Payload: "x", QoS: 1, Retain: true}))
	n.noTimers()
	c.Subscribe("out", 1)
	if m := c.Receive(); !m.Retain || m.Payload != "x" {
		t.Errorf("retained: %v", m)
	}
}

// The topic of EMQX does the same, also for clients without properties.
func TestDelayedTopic(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		n := start(t)
		c := n.connect(mqtttest.Version(v))
		c.Subscribe("out/a", 1)
		sent := time.Now()
		c.Publish(message{Topic: "$delayed/1/out/a", Payload: "later", QoS: 1})
		if m := c.Receive(); m.Payload != "later" || m.Topic != "out/a" || time.Since(sent) < time.Second {
			t.Errorf("got %v after %v", m, time.Since(sent))
		}
		if v != mqtt.V5 {
			return
		}
		for topic, code := range map[string]mqtt.ReasonCode{
			"$delayed/": mqtt.TopicNameInvalid, "$delayed/x/out": mqtt.TopicNameInvalid, "$delayed/1": mqtt.TopicNameInvalid, "$delayed/1/": mqtt.TopicNameInvalid,
			"$delayed/-1/out": mqtt.TopicNameInvalid, "$delayed/9223372036854775807/out": mqtt.TopicNameInvalid, "$delayed/99999999/out": mqtt.QuotaExceeded,
			"$delayed/1/" + invokeTopic: mqtt.NotAuthorized, "$delayed/1/$SYS/x": mqtt.NotAuthorized, "$delayed/1/$delayed/1/out": mqtt.TopicNameInvalid,
		} {
			if ack := c.Offer(message{Topic: topic, QoS: 1}); ack.Code != code {
				t.Errorf("%s: 0x%02x, want 0x%02x", topic, byte(ack.Code), byte(code))
			}
		}
		if ack := c.Offer(after(time.Second, message{Topic: "$delayed/1/out", QoS: 1})); ack.Code != mqtt.ImplementationSpecificError {
			t.Errorf("with both: 0x%02x", byte(ack.Code))
		}
		c.Quiet()
	})
}
