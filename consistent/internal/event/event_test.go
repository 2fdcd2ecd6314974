package event

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

// No two kinds of identity, and no two pairs of source and id, are taken for each other.
func TestID(t *testing.T) {
	t.Parallel()
	application := func(m *client.Message) string { return string(m.Payload) }
	properties := func(source, id string) (u client.UserProperties) {
		return client.UserProperties{{Name: "source", Value: source}, {Name: "id", Value: id}}
	}
	for _, c := range []struct {
		m    client.Message
		want string
	}{
		{client.Message{UserProperties: properties("s", "i"), CorrelationData: []byte("c"), Payload: []byte("p")}, "event:1:si"},
		{client.Message{UserProperties: properties("si", "i")}, "event:2:sii"},
		{client.Message{UserProperties: properties("s", "ii")}, "event:1:sii"},
		{client.Message{UserProperties: properties("", "i"), Payload: []byte("p"), CorrelationData: []byte("c")}, "id:p"},
		{client.Message{UserProperties: properties("s", ""), ResponseTopic: "rt", CorrelationData: []byte("c")}, "request:2:rtc"},
		{client.Message{ResponseTopic: "r", CorrelationData: []byte("tc")}, "request:1:rtc"},
		{client.Message{CorrelationData: []byte("c")}, ""}, // unique to its requester only, which it does not name
		{client.Message{}, ""},
	} {
		if got := ID(&c.m, application); got != c.want {
			t.Errorf("%v: %q, want %q", c.m, got, c.want)
		}
	}
}

func properties(pairs ...string) (u client.UserProperties) {
	for i := 0; i < len(pairs); i += 2 {
		u = append(u, client.UserProperty{Name: pairs[i], Value: pairs[i+1]})
	}
	return u
}

func TestTime(t *testing.T) {
	t.Parallel()
	at, ok := Time(&client.Message{UserProperties: properties("time", "2026-01-02t03:04:05.5z")})
	if want := time.Date(2026, 1, 2, 3, 4, 5, 500_000_000, time.UTC); !ok || !at.Equal(want) {
		t.Errorf("%v, %v; want %v", at, ok, want)
	}
	if _, ok := Time(&client.Message{UserProperties: properties("time", "yesterday")}); ok {
		t.Error("yesterday is a time")
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	got := Trace(&client.Message{UserProperties: properties("tracestate", "s", "id", "1", "traceparent", "p")})
	if len(got) != 2 || got[0] != (client.UserProperty{Name: "traceparent", Value: "p"}) || got[1].Value != "s" {
		t.Errorf("trace context %v", got)
	}
}

// Each message that a server would refuse is refused with a reason that names what is wrong.
func TestCheck(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", math.MaxUint16+1)
	for want, m := range map[string]client.Message{
		"":                           {Topic: "a", UserProperties: properties("id", "1", "source", "s")},
		"not the name of a topic":    {Topic: "a/+"},
		"response topic \"#\"":       {Topic: "a", ResponseTopic: "#"},
		"content type":               {Topic: "a", ContentType: long},
		"Correlation Data":           {Topic: "a", CorrelationData: []byte(long)},
		"payload is text":            {Topic: "a", UTF8: true, Payload: []byte{0xFF}},
		"expiry is negative":         {Topic: "a", Expiry: -1},
		"CloudEvents id is empty":    {Topic: "a", UserProperties: properties("id", "", "source", "s")},
		"CloudEvents source is empt": {Topic: "a", UserProperties: properties("id", "1", "source", "")},
		"user property \"a\"":        {Topic: "a", UserProperties: properties("a", "\x00")},
		"it is a channel":            {UserProperties: properties(Broken, "it is a channel")},
		"may be one, once":           {Topic: "a", UserProperties: properties("holdfast-deliver-after", "1", "holdfast-deliver-at", "1")},
		"number of milliseconds":     {Topic: "a", UserProperties: properties("holdfast-deliver-after", "-1")},
		"as RFC 3339 writes it":      {Topic: "a", UserProperties: properties("holdfast-deliver-at", "soon")},
		"from 1 to 256 bytes":        client.Message{Topic: "a"}.After(time.Hour).WithTimerID(""),
		"101 bytes":                  {Topic: "a", Payload: make([]byte, 101-(&client.Message{Topic: "a"}).SizeBytes())},
	} {
		switch err := Check(&m, 100); {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want an error about %q", err, want)
		case errors.Is(err, client.ErrTooLarge) != (want == "101 bytes"):
			t.Errorf("%q: %v", want, err)
		}
	}
	atLimit := client.Message{Topic: "a", Payload: make([]byte, 100-(&client.Message{Topic: "a"}).SizeBytes())}
	if err := Check(&atLimit, 100); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}

// The CloudEvents time of a timer is when it is due, unless that has passed: then it is now, so that
// its consumer does not take it for an old message.
func TestTimeOfTimers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	in := func(m client.Message) client.Message {
		d := Defaults{Input: &client.Message{}, ID: func() string { return "1" }, Source: "s", Type: "t", Time: now}
		d.Complete(&m)
		return m
	}
	of := func(m client.Message, when time.Time) client.Message {
		m.UserProperties = properties("time", when.Format(time.RFC3339Nano))
		return m
	}
	m := client.Message{Topic: "a"}
	due := now.Add(time.Hour).Truncate(time.Millisecond)
	rfc := m
	rfc.UserProperties = properties("holdfast-deliver-at", due.Format(time.RFC3339Nano))
	for name, tc := range map[string]struct {
		message client.Message
		want    time.Time
	}{
		"no timer":             {m, now},
		"an interval":          {m.After(time.Hour), now.Add(time.Hour)},
		"a time":               {m.At(due), due},
		"a time of RFC 3339":   {rfc, due},
		"a time that passed":   {m.At(time.Unix(1, 0)), now},
		"an event of before":   {of(m, now.Add(-time.Hour)).At(due), due},
		"an event that is due": {of(m, now.Add(2*time.Hour)).At(due), now.Add(2 * time.Hour)},
		"an event of now":      {of(m, now.Add(-time.Hour)), now.Add(-time.Hour)},
	} {
		got := in(tc.message)
		if at, ok := Time(&got); !ok || !at.Equal(tc.want) {
			t.Errorf("%s: %v, want %v", name, at, tc.want)
		}
	}
	before := of(m, now).At(due)
	_ = in(before)
	if at, _ := Time(&before); !at.Equal(now) {
		t.Errorf("the message of the caller has the time %v", at)
	}
}
