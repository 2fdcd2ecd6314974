package protocol

import (
	"encoding/hex"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// A notification's topic is NotifyPrefix/{client ID}/command/notify/{key}, both in
// upper-case base 16 (protocol, section 6).
const notifyMiddle = "/command/notify/"

// maxTopic is the longest topic that an MQTT packet can carry, in bytes.
const maxTopic = 65_535

const upperHex = "0123456789ABCDEF"

// AppendNotifyTopic appends the topic on which clientID hears of key.
func AppendNotifyTopic(dst []byte, clientID string, key []byte) []byte {
	dst = append(dst, NotifyPrefix...)
	dst = append(dst, '/')
	for i := range len(clientID) {
		dst = append(dst, upperHex[clientID[i]>>4], upperHex[clientID[i]&15])
	}
	dst = append(dst, notifyMiddle...)
	for _, c := range key {
		dst = append(dst, upperHex[c>>4], upperHex[c&15])
	}
	return dst
}

// NotifyTopicFits reports whether that topic is one that MQTT can carry. If not, a
// KEYNOTIFY of key by clientID is a syntax error.
func NotifyTopicFits(clientID string, key []byte) bool {
	return len(NotifyPrefix)+len("/")+2*len(clientID)+len(notifyMiddle)+2*len(key) <= maxTopic
}

// ParseNotifyTopic is the way back of AppendNotifyTopic. ok is false for any other
// topic. Lower-case digits are accepted.
func ParseNotifyTopic(topic string) (clientID string, key []byte, ok bool) {
	rest, ok := strings.CutPrefix(topic, NotifyPrefix+"/")
	if !ok {
		return "", nil, false
	}
	id, name, ok := strings.Cut(rest, notifyMiddle)
	if !ok || name == "" {
		return "", nil, false
	}
	client, err := hex.DecodeString(id)
	if err != nil {
		return "", nil, false
	}
	key, err = hex.DecodeString(name)
	if err != nil {
		return "", nil, false
	}
	return string(client), key, true
}

// setEvent is the payload of a KeySet up to its value.
const setEvent = "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n"

// AppendEvent appends the payload of a notification.
func AppendEvent(dst []byte, w Wire, e *statestore.Event) []byte {
	switch {
	case e.Kind == statestore.KeySet:
		dst = append(dst, setEvent...)
		return appendBlob(dst, e.Value)
	case w == Documented:
		return append(dst, "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n"...)
	default:
		return append(dst, "*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"...)
	}
}

// ParseEvent reads the payload of a notification in either wire form. The key is
// in the topic and the version in a property: they are the caller's to fill in.
// Value is a view of payload. The error is ErrMalformed.
func ParseEvent(payload []byte) (statestore.Event, error) {
	var args [4][]byte
	n, ok := parseArray(payload, args[:])
	if !ok || n < 2 || !isWord(args[0], "notify") {
		return statestore.Event{}, ErrMalformed
	}
	switch {
	case n == 4 && isWord(args[1], "set") && isWord(args[2], "value"):
		return statestore.Event{Kind: statestore.KeySet, Value: args[3]}, nil
	case n == 2 && (isWord(args[1], "delete") || isWord(args[1], "del")):
		return statestore.Event{Kind: statestore.KeyDeleted}, nil
	}
	return statestore.Event{}, ErrMalformed
}
