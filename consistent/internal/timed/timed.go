// Package timed knows which messages are timers (protocol, section 14): those that the server is to
// deliver later, and those that stand for the cancelling of one. It sends nothing.
package timed

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
)

// cancelProperty is the user property of a message that is not to be published, but cancels the
// timer with this ID.
const cancelProperty = "holdfast-cancel-timer"

// Cancel makes a message that stands for the cancelling of a timer.
func Cancel(id string) client.Message {
	return client.Message{UserProperties: client.UserProperties{{Name: cancelProperty, Value: id}}}
}

// Cancels returns the ID of the timer that a message stands for the cancelling of.
func Cancels(m *client.Message) (id string, ok bool) {
	if m.Topic != "" {
		return "", false
	}
	return m.UserProperties.Get(cancelProperty)
}

// CheckID tells why no timer can have an ID.
func CheckID(id string) error {
	if len(id) == 0 || len(id) > delay.MaxID {
		return fmt.Errorf("the ID of a timer that is to be cancelled has %d bytes: it has from 1 to %d", len(id), delay.MaxID)
	}
	return nil
}

// ID returns the ID of a timer, "" if it has none. ok is false if the message is to be delivered at
// once.
func ID(m *client.Message) (id string, ok bool) {
	for _, u := range m.UserProperties {
		switch u.Name {
		case delay.AfterProperty, delay.AtProperty:
			ok = true
		case delay.IDProperty:
			id = u.Value
		}
	}
	return id, ok
}

// Check tells why the server would refuse a message as a timer, --max-delay apart, which only the
// server knows.
func Check(m *client.Message) error {
	if _, reason := delay.ParsePairs(m.UserProperties); reason != "" {
		return errors.New(reason)
	}
	return nil
}

// Due returns when the message of a timer is due that is set now. ok is false if it is no timer, or
// one that [Check] refuses.
func Due(m *client.Message, now time.Time) (due time.Time, ok bool) {
	r, reason := delay.ParsePairs(m.UserProperties)
	switch {
	case !r.Asked || reason != "":
		return due, false
	case r.Relative:
		return now.Add(time.Duration(min(r.Ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond), true
	}
	return time.UnixMilli(r.Ms).UTC(), true
}

// Delivered is the message of a timer as the server delivers it.
func Delivered(m client.Message) client.Message {
	m.UserProperties = slices.DeleteFunc(slices.Clone(m.UserProperties), func(u client.UserProperty) bool {
		return u.Name == delay.AfterProperty || u.Name == delay.AtProperty
	})
	return m
}

// Add adds what a handler returns to what is to be published and cancelled, in its order. Of what
// is said of a timer the last counts: a message takes the place of one with the same ID, and of a
// cancel; and a cancel that of a message. So no timer occurs twice.
func Add(publish []client.Message, cancels []string, outputs []client.Message) ([]client.Message, []string) {
	last := make(map[string]int) // of the outputs that are about a timer
	for i := range outputs {
		if id, is := about(&outputs[i]); is {
			last[id] = i
		}
	}
	replaced := func(id string) bool { _, is := last[id]; return is }
	publish = slices.DeleteFunc(publish, func(m client.Message) bool {
		id, is := about(&m)
		return is && replaced(id)
	})
	cancels = slices.DeleteFunc(cancels, replaced)
	for i := range outputs {
		m := &outputs[i]
		id, is := about(m)
		if is && last[id] != i {
			continue
		}
		if _, cancel := Cancels(m); cancel {
			cancels = append(cancels, id)
		} else {
			publish = append(publish, *m)
		}
	}
	return publish, cancels
}

// about returns the ID of the timer that a message sets or cancels. is false if it does neither, or
// the timer has no ID.
func about(m *client.Message) (id string, is bool) {
	if id, is = Cancels(m); is {
		return id, true
	}
	id, is = ID(m)
	return id, is && id != ""
}

// Any tells whether some of the outputs set or cancel timers.
func Any(outputs []client.Message) bool {
	return slices.ContainsFunc(outputs, func(m client.Message) bool {
		_, timer := ID(&m)
		_, cancels := Cancels(&m)
		return timer || cancels
	})
}

// Split parts timers from what is published at once, each in order.
func Split(outputs []client.Message) (timers, others []client.Message) {
	for i := range outputs {
		_, cancels := Cancels(&outputs[i])
		if _, timer := ID(&outputs[i]); timer || cancels {
			timers = append(timers, outputs[i])
		} else {
			others = append(others, outputs[i])
		}
	}
	return timers, others
}
