package consistenttest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
)

// patience is how long anything may take before it counts as never happening.
const patience = 30 * time.Second

// Test has processors that run on a [Broker] until it ends.
type Test struct {
	Broker *Broker
	t      testing.TB
	name   string // of the processors
	first  *Instance
}

// New runs a processor of that name, with the handlers that register registers, as
// [Test.Instance]; [Test.Start] runs more. Errors of the options and of the registration fail
// the test at once. Attempts follow each other closely unless [consistent.WithBackoff] says
// otherwise, nothing is logged unless [consistent.WithLogger] is given, and the time is the
// broker's, which [Broker.Advance] moves, unless [consistent.WithNow] is.
func New(t testing.TB, name string, register func(*consistent.Processor), opts ...consistent.Option) *Test {
	t.Helper()
	test := &Test{Broker: NewBroker(), t: t, name: name}
	test.first = test.Start("processor", register, opts...)
	return test
}

// Send publishes messages and waits until they, and what was published in
// consequence, are processed.
func (test *Test) Send(messages ...consistent.Message) {
	test.t.Helper()
	test.Broker.Publish(messages...)
	settle(test.t, test.Broker)
}

func settle(t testing.TB, b *Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.Settle(ctx); err != nil {
		t.Fatal(err)
	}
}

// Published returns what was published on the topics of a filter, in order.
func (test *Test) Published(filter string) []consistent.Message { return test.Broker.Published(filter) }

// DeadLetters returns the reasons of the dead letters, in order.
func (test *Test) DeadLetters() (reasons []string) {
	for _, m := range test.Broker.Published("#") {
		if reason, ok := m.UserProperties.Get(consistent.DeadLetterReason); ok {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// State reads the state of a handler, by the handler's name and the business key, into
// into, as JSON. It fails the test if there is none.
func (test *Test) State(handler, key string, into any) {
	test.t.Helper()
	value, found := test.Broker.State(handler + "/" + key)
	if !found {
		test.t.Fatalf("handler %q has no state for key %q", handler, key)
	}
	if err := json.Unmarshal(value, into); err != nil {
		test.t.Fatalf("the state of key %q: %v", key, err)
	}
}

// Event gives a message the CloudEvents properties that identify it, with the
// source "test".
func Event(id string, m consistent.Message) consistent.Message {
	m.UserProperties = append(m.UserProperties[:len(m.UserProperties):len(m.UserProperties)],
		consistent.UserProperty{Name: "id", Value: id}, consistent.UserProperty{Name: "source", Value: "test"})
	return m
}

// show writes a message as a person compares it with another one: without its trace context,
// in which a replay may differ.
func show(m consistent.Message) string {
	properties := slices.DeleteFunc(slices.Clone(m.UserProperties), func(u consistent.UserProperty) bool {
		return slices.Contains(event.TraceContext[:], u.Name)
	})
	return fmt.Sprintf("%s %q %v (content type %q, response topic %q, correlation %q, retain %v, expiry %v)",
		m.Topic, m.Payload, properties, m.ContentType, m.ResponseTopic, m.CorrelationData, m.Retain, m.Expiry)
}
