package event

import (
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

// Of gives a message a CloudEvents identity, the time of now, and a type, unless it is empty and
// the message has one.
func Of(m client.Message, source, id, eventType string) (client.Message, error) {
	if reason, broken := m.UserProperties.Get(Broken); broken {
		return client.Message{}, fmt.Errorf("event: %w: %s", client.ErrInvalidOption, reason)
	}
	if eventType == "" {
		eventType, _ = m.UserProperties.Get("type")
	}
	set := client.UserProperties{
		{Name: "specversion", Value: "1.0"}, {Name: "id", Value: id}, {Name: "source", Value: source},
		{Name: "type", Value: eventType}, {Name: "time", Value: time.Now().UTC().Format(time.RFC3339Nano)},
	}
	for _, u := range set {
		if !ValidText(u.Value) || u.Value == "" {
			return client.Message{}, fmt.Errorf("event: %w: its %s is %q: give a text of MQTT that is not empty", client.ErrInvalidOption, u.Name, u.Value)
		}
	}
	for _, u := range m.UserProperties {
		if _, replaced := set.Get(u.Name); !replaced {
			set = append(set, u)
		}
	}
	m.UserProperties = set
	if err := CheckID(ID(&m, nil)); err != nil {
		return client.Message{}, fmt.Errorf("event: %w: %w", client.ErrInvalidOption, err)
	}
	return m, nil
}
