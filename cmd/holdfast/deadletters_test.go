package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
)

// An operator lists the dead letters of a processor, looks at one, has one processed again,
// and drops the rest.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := client.Dial(ctx, d.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var names []string
	for i := range 3 {
		l := deadletter.Letter{Processor: "plant/bank", Code: deadletter.Attempts, Reason: "out of luck", Handler: "bank", Key: "ann", MessageID: "id:1",
			Time: time.Unix(1700000000, 0).UTC(), Message: client.Message{Topic: "in", Payload: fmt.Append(nil, "message ", i), UserProperties: client.UserProperties{{Name: "id", Value: fmt.Sprint(i)}}}}
		l.ID = l.MakeID()
		value, err := l.Encode(true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cl.Set(ctx, l.StoreKey(), value); err != nil {
			t.Fatal(err)
		}
		names = append(names, "plant/bank/"+l.ID)
	}
	session, err := client.DialSession(ctx, d.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := session.Subscribe(ctx, "in"); err != nil {
		t.Fatal(err)
	}

	list := d.run("dead-letters", "list", "plant/bank")
	for _, name := range names {
		if want := name + " 2023-11-14T22:13:20Z attempts in out of luck\n"; !strings.Contains(list.out, want) {
			t.Errorf("list: %+v, want %q", list, want)
		}
	}
	if r := d.run("dead-letters", "list", "bank"); r.out != "" || r.code != 0 {
		t.Errorf("of another processor: %+v", r)
	}
	if r := d.run("dead-letters", "list", "--output", "json"); strings.Count(r.out, `"code":"attempts"`) != 3 {
		t.Errorf("as JSON: %+v", r)
	}
	if r := d.run("dead-letters", "show", names[1]); !strings.Contains(r.out, `"payload":"message 1"`) || r.code != 0 {
		t.Errorf("show: %+v", r)
	}
	if r := d.run("dead-letters", "show", "--payload", names[1]); r.out != "message 1" {
		t.Errorf("show --payload: %+v", r)
	}
	if r := d.run("dead-letters", "replay", names[1]); r.code != 0 || r.out != "" {
		t.Errorf("replay: %+v", r)
	}
	for m, err := range session.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if id, _ := m.UserProperties.Get("id"); id != "1" || string(m.Payload) != "message 1" {
			t.Errorf("replayed %v", m)
		}
		break
	}
	if r := d.run("dead-letters", "drop", names[1]); r.code != 1 || !strings.Contains(r.err, "there is no such dead letter") {
		t.Errorf("drop of one that was replayed: %+v", r)
	}
	if r := d.run("dead-letters", "drop", "--all", "plant/bank"); r.code != 0 {
		t.Errorf("drop: %+v", r)
	}
	if r := d.run("dead-letters", "list"); r.out != "" || r.code != 0 {
		t.Errorf("after all was dropped: %+v", r)
	}
	for _, bad := range [][]string{{"show", "x"}, {"drop"}, {"replay", "--all", "p", names[0]}, {"replay", "/x"}, {"nonsense"}} {
		if r := d.run(append([]string{"dead-letters"}, bad...)...); r.code != 2 {
			t.Errorf("%q: %+v", bad, r)
		}
	}
}
