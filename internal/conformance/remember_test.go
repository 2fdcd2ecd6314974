package conformance

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

const nilBlob = "$-1\r\n"

// loaded is LOAD's answer.
func loaded(number int, state, context string) string {
	return fmt.Sprintf("*3\r\n:%d\r\n%s%s", number, state, context)
}

// Protocol, section 8, over the wire: the numbers, the nil blobs, and which
// version each answer carries.
func TestConsistentMessaging(t *testing.T) {
	t.Parallel()
	r := start(t).requester()

	wantNoVersion(t, "LOAD of a missing key", r.want(loaded(0, nilBlob, nilBlob), "LOAD", "k", "m1"))
	first := version(t, r.want(ok, "STORE", "k", "a", "m1", "-", "CTX", "captured"))
	if got := version(t, r.want(loaded(1, nilBlob, blob("captured")), "LOAD", "k", "m1")); got != first {
		t.Errorf("LOAD 1 carries %v, want the version that the message produced, %v", got, first)
	}
	if got := version(t, r.want(loaded(0, blob("a"), nilBlob), "load", "k", "m2")); got != first {
		t.Errorf("LOAD 0 carries %v, want the current version, %v", got, first)
	}
	if got := version(t, r.want(":0\r\n", "STORE", "k", "x", "m1", "-")); got != first {
		t.Errorf("STORE :0 carries %v, want the version that the message produced, %v", got, first)
	}
	second := version(t, r.want(ok, "store", "k", "b", "m2", first.String(), "keep", "1000000"))
	if second.Compare(first) <= 0 {
		t.Errorf("the second STORE has version %v, the first %v", second, first)
	}
	if got := version(t, r.want(notApplied, "STORE", "k", "c", "m3", first.String())); got != second {
		t.Errorf("STORE :-1 carries %v, want the stored version, %v", got, second)
	}
	wantNoVersion(t, "STORE :-1 on a missing key", r.want(notApplied, "STORE", "missing", "c", "m3", first.String()))
	wantNoVersion(t, "DONE", r.want(":1\r\n", "DONE", "k", "m2"))
	wantNoVersion(t, "DONE of what is not remembered", r.want(":0\r\n", "DONE", "k", "m3"))
	if got := version(t, r.want(loaded(2, nilBlob, nilBlob), "LOAD", "k", "m2")); got != second {
		t.Errorf("LOAD 2 carries %v, want the version that the message produced, %v", got, second)
	}
	r.want(blob("b"), "GET", "k")

	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"LOAD", "k", ""}, "syntax error"},
		{[]string{"STORE", "k", "a", "", "-"}, "syntax error"},
		{[]string{"DONE", "k", ""}, "syntax error"},
		{[]string{"STORE", "k", "a", "m", "-", "KEEP", "0"}, "syntax error"},
		{[]string{"STORE", "k", "a", "m", "soon"}, "malformed timestamp"},
		{[]string{"STORE", "", "a", "m", "-"}, "the key length is zero"},
		{[]string{"STORE", "k", "a", "m"}, "wrong number of arguments"},
		{[]string{"LOAD", "k"}, "wrong number of arguments"},
	} {
		r.want(failure(c.want), c.args...)
	}
}

// STORE's :-1 is the same in both wire forms; SET's is not.
func TestStoreConflictInTheDocumentedWireForm(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *server.Config) { c.Wire = "documented" }).requester()
	r.want(ok, "SET", "k", "a")
	r.want("-1\r\n", "SET", "k", "a", "NX")
	r.want(":-1\r\n", "STORE", "k", "a", "m", "-")
}

// Only the current dialect has them.
func TestConsistentMessagingInThePreview(t *testing.T) {
	t.Parallel()
	r := start(t).requester().preview()
	for _, args := range [][]string{{"LOAD", "k", "m"}, {"STORE", "k", "a", "m", "-"}, {"DONE", "k", "m"}} {
		r.want(failure("unknown command"), args...)
	}
}

// Remembered through a restart, with the key deleted meanwhile; watchers hear of a
// STORE as of a SET.
func TestRememberedMessagesSurviveARestart(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester(mqtttest.ClientID("watcher"))
	r.want(ok, "KEYNOTIFY", "k")
	r.want(ok, "STORE", "k", "a", "m1", "-")
	notified(t, r.client, "watcher", "k", setNotice("a"))
	base := version(t, r.do("GET", "k"))
	second := version(t, r.want(ok, "STORE", "k", "b", "m2", base.String(), "CTX", "c"))
	notified(t, r.client, "watcher", "k", setNotice("b"))
	r.want(":1\r\n", "DEL", "k")

	n.Restart()

	r = n.requester()
	if got := version(t, r.want(loaded(1, blob("a"), blob("c")), "LOAD", "k", "m2")); got != second {
		t.Errorf("LOAD carries %v, want %v", got, second)
	}
	r.want(":0\r\n", "STORE", "k", "b", "m2", base.String())
	r.want(loaded(0, nilBlob, nilBlob), "LOAD", "k", "m3")
}

// Protocol, section 9: a message counts its key and its ID twice, the value before it, its
// context, and 64 bytes.
func TestBoundOfRememberedMessages(t *testing.T) {
	t.Parallel()
	const first, second = 2*3 + 64, 2*3 + 3 + 64
	full := failure("the quota has been exceeded")
	r := start(t, func(c *server.Config) { c.MaxRemembered = first + second }).requester()
	r.want(ok, "STORE", "k", "a", "m1", "-")
	r.want(full, "STORE", "l", "a", "m2", "-", "CTX", "four") // one byte too many
	r.want(missing, "GET", "l")
	r.want(ok, "STORE", "l", "a", "m2", "-", "CTX", "ctx")
	r.want(full, "STORE", "n", "a", "m", "-") // the shortest that there is
	r.want(full, "DONE", "k", "m1", "CTX", "d")
	r.want(loaded(1, nilBlob, nilBlob), "LOAD", "k", "m1")
	r.want(":1\r\n", "DONE", "k", "m1")
	r.want(":1\r\n", "DONE", "l", "m2", "CTX", "d")
	r.want(":0\r\n", "STORE", "k", "b", "m1", "-") // it is remembered, and takes no room
	r.want(ok, "SET", "n", "a")
}
