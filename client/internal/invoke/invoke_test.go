package invoke

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Answers that are not in the protocol are errors, and of their own kind.
func TestUnreadableAnswers(t *testing.T) {
	t.Parallel()
	unexpected := errors.New("unexpected")
	status := func(status, message string) error { return fmt.Errorf("status %s %s", status, message) }
	l := &Link{cfg: &Config{Errors: Errors{Status: status, Unexpected: unexpected}}}
	for name, test := range map[string]struct {
		payload string
		user    []byte // a property block
		check   func(error) bool
	}{
		"not RESP": {"hello", nil, func(err error) bool { return errors.Is(err, unexpected) }},
		"empty":    {"", nil, func(err error) bool { return errors.Is(err, unexpected) }},
		"status 500": {"", mqtt.AppendUserProp(mqtt.AppendUserProp(nil, "__stat", "500"), "__stMsg", "broken"), func(err error) bool {
			return err.Error() == "status 500 broken"
		}},
	} {
		p := &mqtt.Publish{Payload: []byte(test.payload), Props: mqtt.PublishProps{Raw: test.user}}
		if _, err := l.parseReply(p); err == nil || !test.check(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, ok := l.parseNotification(&mqtt.Publish{Topic: []byte("some/topic")}); ok {
		t.Error("any topic is taken for a notification")
	}
}
