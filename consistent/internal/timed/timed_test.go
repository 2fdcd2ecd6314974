package timed

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

// Of what is said of a timer the last counts, whatever was said before.
func TestAdd(t *testing.T) {
	t.Parallel()
	set := func(payload, id string) client.Message {
		m := client.Message{Topic: "t", Payload: []byte(payload)}.After(time.Hour)
		if id != "" {
			m = m.WithTimerID(id)
		}
		return m
	}
	now := client.Message{Topic: "t", Payload: []byte("now")}.WithTimerID("a") // an ID alone makes no timer
	for _, tc := range []struct {
		first, second []client.Message
		publish       string
		cancels       []string
	}{
		{[]client.Message{set("1", "a"), now}, []client.Message{set("2", "a")}, "[now 2]", nil},
		{[]client.Message{set("1", "a"), set("2", "b")}, []client.Message{Cancel("a")}, "[2]", []string{"a"}},
		{[]client.Message{Cancel("a"), Cancel("b")}, []client.Message{set("1", "a"), Cancel("b")}, "[1]", []string{"b"}},
		{[]client.Message{set("1", "")}, []client.Message{set("2", ""), now}, "[1 2 now]", nil},
		{[]client.Message{set("1", "a"), Cancel("a"), set("2", "a")}, nil, "[2]", nil},
	} {
		publish, cancels := Add(nil, nil, tc.first)
		publish, cancels = Add(publish, cancels, tc.second)
		var payloads []string
		for _, m := range publish {
			payloads = append(payloads, string(m.Payload))
		}
		if fmt.Sprint(payloads) != tc.publish || !slices.Equal(cancels, tc.cancels) {
			t.Errorf("published %v, cancelled %q; want %v, %q", payloads, cancels, tc.publish, tc.cancels)
		}
	}
}

func TestDue(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000).UTC()
	m := client.Message{Topic: "t", Payload: []byte("p")}
	if _, ok := Due(&m, now); ok {
		t.Error("a message without a time is due later")
	}
	for _, timer := range []client.Message{m.After(90 * time.Second), m.At(now.Add(90 * time.Second))} {
		if due, ok := Due(&timer, now); !ok || !due.Equal(now.Add(90*time.Second)) {
			t.Errorf("%v is due %v, %v", timer.UserProperties, due, ok)
		}
		if d := Delivered(timer); len(d.UserProperties) != 0 || len(timer.UserProperties) != 1 {
			t.Errorf("delivered with %v", d.UserProperties)
		}
	}
	late := client.Message{Topic: "t", UserProperties: client.UserProperties{{Name: "holdfast-deliver-after", Value: "9223372036854775807"}}}
	if due, ok := Due(&late, now); !ok || due.Before(now.AddDate(200, 0, 0)) {
		t.Errorf("the longest interval is due %v, %v", due, ok)
	}
	for id, ok := range map[string]bool{"": false, "a": true, fmt.Sprintf("%0256d", 1): true, fmt.Sprintf("%0257d", 1): false} {
		if err := CheckID(id); (err == nil) != ok {
			t.Errorf("an ID of %d bytes: %v", len(id), err)
		}
	}
}

// As many orders as a handler may return take time that grows with their number, not with its square.
func TestAddMany(t *testing.T) {
	t.Parallel()
	const n = 100_000
	outputs := make([]client.Message, 0, 2*n)
	for i := range n {
		outputs = append(outputs, Cancel(fmt.Sprint(i)))
	}
	outputs = append(outputs, outputs...)
	publish, cancels := Add(nil, nil, outputs)
	if len(publish) != 0 || len(cancels) != n {
		t.Errorf("%d published and %d cancelled, want 0 and %d", len(publish), len(cancels), n)
	}
}
