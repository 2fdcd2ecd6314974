package conformance

import (
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

func retain(topic, payload string) message {
	return message{Topic: topic, QoS: 1, Retain: true, Payload: payload}
}

func offered(t *testing.T, c *mqtttest.Client, what string, m message, want mqtt.ReasonCode) {
	t.Helper()
	wantCode(t, what, c.Offer(m).Code, want)
}

// A client may hold so many retained messages; the ones that it replaces or deletes
// make room, and so do those that another client has taken over.
func TestRetainedMessagesOfOneClientAreBounded(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxClientRetained = 2 })
	a, b := n.connect(mqtttest.ClientID("a")), n.connect(mqtttest.ClientID("b"))
	offered(t, a, "the first", retain("1", "x"), mqtt.NoMatchingSubscribers)
	offered(t, a, "the second", retain("2", "x"), mqtt.NoMatchingSubscribers)
	offered(t, a, "the third", retain("3", "x"), mqtt.QuotaExceeded)
	offered(t, a, "one in place of the second", retain("2", "other"), mqtt.NoMatchingSubscribers)
	offered(t, b, "another client's", retain("3", "x"), mqtt.NoMatchingSubscribers)
	offered(t, a, "one in place of another client's", retain("3", "x"), mqtt.QuotaExceeded)

	offered(t, b, "one that takes over the second", retain("2", "x"), mqtt.NoMatchingSubscribers)
	offered(t, a, "the second again, under another topic", retain("4", "x"), mqtt.NoMatchingSubscribers)
	offered(t, a, "a deletion", retain("4", ""), mqtt.NoMatchingSubscribers)
	offered(t, a, "one in place of the deleted", retain("5", "x"), mqtt.NoMatchingSubscribers)
}

func TestBytesOfOneClientsRetainedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxClientRetainedBytes = 1000 })
	a := n.connect(mqtttest.ClientID("a"))
	size := len("r") + len("a") // topic and publisher count, too
	offered(t, a, "as many bytes as may be", retain("r", strings.Repeat("x", 1000-size)), mqtt.NoMatchingSubscribers)
	offered(t, a, "one byte more", retain("r", strings.Repeat("x", 1001-size)), mqtt.QuotaExceeded)
	offered(t, a, "four million more", retain("s", strings.Repeat("x", 4<<20)), mqtt.QuotaExceeded)
	offered(t, a, "fewer", retain("r", "x"), mqtt.NoMatchingSubscribers)
	n.connect(mqtttest.ClientID("b")).Publish(retain("s", strings.Repeat("x", 900)))
}

// Whose messages they are is on disk.
func TestRetainedMessagesBelongToTheirClientAfterARestart(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxClientRetained = 1 })
	offered(t, n.connect(mqtttest.ClientID("a")), "the first", retain("1", "x"), mqtt.NoMatchingSubscribers)
	n.Restart()
	offered(t, n.connect(mqtttest.ClientID("a")), "the second", retain("2", "x"), mqtt.QuotaExceeded)
}

// A client that fills the store has the others not locked out.
func TestFullRetainedStoreHasRoomForClientsThatHoldLittle(t *testing.T) {
	t.Parallel()
	const bound = 32
	n := start(t, func(c *server.Config) { c.Limits.MaxRetained = bound })
	hog, other := n.connect(mqtttest.ClientID("hog")), n.connect(mqtttest.ClientID("other"))
	for i := range bound {
		offered(t, hog, "up to the bound", retain("hog/"+strconv.Itoa(i), "x"), mqtt.NoMatchingSubscribers)
	}
	offered(t, hog, "beyond the bound", retain("hog/more", "x"), mqtt.QuotaExceeded)
	for i := range bound / 16 {
		offered(t, other, "of a client that holds little", retain("other/"+strconv.Itoa(i), "x"), mqtt.NoMatchingSubscribers)
	}
	offered(t, other, "of a client that holds a sixteenth", retain("other/more", "x"), mqtt.QuotaExceeded)
}
