package conformance

import (
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// A client that may write a key and not read it learns what the conditions of its own
// writes answer, and nothing else (docs/policy.md): whether the key exists, the version that
// a refused write is answered with, and whether a value that it has to guess as a whole is
// the key's. No answer has the value or a part of it, and a guess that is nearly right is
// answered like any other. Of a key that it may not write either, it learns nothing.
func TestWhatAWriterLearns(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, "rules:"+everything("admin")+machines)
	const secret = "four score and seven"
	admin := n.requester(as("admin"))
	press := &requester{t: t, client: n.connect(as("press"), mqtttest.ClientID("p1")), topic: invokeTopic, timestamp: "__ts", responses: "answers/p1"}
	press.Subscribe("answers/p1", 1)
	admin.want("+OK\r\n", "SET", "inbox", secret) // press may write it
	admin.want("+OK\r\n", "SET", "lathe:state", secret)

	// Whether it exists.
	press.want(":-1\r\n", "SET", "inbox", "mine", "NX")
	// Whether it has a value, which the writer guesses as a whole.
	guesses := []string{"", "f", secret[:len(secret)-1], secret + " years", strings.ToUpper(secret), "else"}
	answer := press.do("VDEL", "inbox", "else")
	for _, guess := range guesses {
		for _, args := range [][]string{{"VDEL", "inbox", guess}, {"SET", "inbox", "mine", "NEX", guess}} {
			got := press.want(":-1\r\n", args...)
			if version(t, got) != version(t, answer) || len(got.User) != len(answer.User) {
				t.Errorf("%q is answered with %v, another wrong guess with %v", args, got.User, answer.User)
			}
		}
	}
	press.want("+OK\r\n", "SET", "inbox", secret, "NEX", secret)
	// What reads is refused, also under the conditions of a write.
	for _, args := range [][]string{{"GET", "inbox"}, {"KEYNOTIFY", "inbox"}, {"LOAD", "inbox", "message"}} {
		got := press.want(failure("not authorized"), args...)
		wantNoVersion(t, args[0], got)
	}
	press.want("*1\r\n*0\r\n", "SCAN", "inbox")

	// Of the key of another machine it learns nothing, whether or not there is such a key.
	for _, key := range []string{"lathe:state", "lathe:none"} {
		for _, args := range [][]string{{"SET", key, "v", "NX"}, {"SET", key, "v", "NEX", secret}, {"VDEL", key, secret}, {"DEL", key}, {"GET", key}} {
			wantNoVersion(t, args[0], press.want(failure("not authorized"), args...))
		}
	}
}
