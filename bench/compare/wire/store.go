package wire

import (
	"bytes"
	"encoding/hex"
	"strconv"
	"strings"
)

// Version is a version of the length that the store issues today: the bare loop
// says it where Holdfast says a real one.
const Version = "1795219763123:1:StateStore"

// AppendCommand appends a command of the state store, a RESP array.
func AppendCommand[T ~string | ~[]byte](dst []byte, args ...T) []byte {
	dst = strconv.AppendInt(append(dst, '*'), int64(len(args)), 10)
	dst = append(dst, "\r\n"...)
	for _, a := range args {
		dst = AppendBlob(dst, a)
	}
	return dst
}

// AppendBlob appends a RESP blob string.
func AppendBlob[T ~string | ~[]byte](dst []byte, s T) []byte {
	dst = strconv.AppendInt(append(dst, '$'), int64(len(s)), 10)
	dst = append(dst, "\r\n"...)
	return append(append(dst, s...), "\r\n"...)
}

// AppendRequest appends a request to the state store as a client's SDK sends it.
func AppendRequest(dst []byte, id uint16, responseTopic, ts string, args ...string) []byte {
	props := AppendProp(nil, PropResponseTopic, responseTopic)
	props = AppendProp(props, PropCorrelation, "0123456789abcdef")
	if ts != "" {
		props = AppendUser(props, "__ts", ts)
	}
	return AppendPublish(dst, 1, false, id, InvokeTopic, props, AppendCommand(nil, args...))
}

// Command gives a request's verb and, of a SET, its value. It knows the form
// that AppendRequest writes, not the protocol.
func Command(payload []byte) (verb, value []byte) {
	payload = payload[4:] // *N\r\n
	verb, payload = blob(payload)
	if len(verb) == 3 && verb[0] == 'S' {
		_, payload = blob(payload)
		value, _ = blob(payload)
	}
	return verb, value
}

func blob(b []byte) (value, rest []byte) {
	i := bytes.IndexByte(b, '\r')
	n, _ := strconv.Atoi(string(b[1:i]))
	return b[i+2 : i+2+n], b[i+2+n+2:]
}

// Answers builds the store's responses and notifications.
type Answers struct{ props []byte }

var (
	head        = append(AppendProp([]byte{PropPayloadFormat, 0}, PropContentType, "application/octet-stream"), PropCorrelation)
	stamp       = AppendUser(nil, "__ts", Version)
	tail        = AppendUser(AppendUser(nil, "__stat", "200"), "__protVer", "1.0")
	notifyProps = append(AppendProp([]byte{PropPayloadFormat, 0}, PropContentType, "application/octet-stream"),
		AppendUser(AppendUser(AppendUser(nil, "__ts", Version), "__protVer", "1.0"), "__srcId", "StateStore")...)
)

// AppendResponse appends the PUBLISH that answers a request.
func (a *Answers) AppendResponse(dst []byte, id uint16, topic, correlation []byte, versioned bool, payload []byte) []byte {
	return AppendPublish(dst, 1, false, id, topic, a.ResponseProps(correlation, versioned), payload)
}

// ResponseProps gives the properties of a response, valid until the next call.
func (a *Answers) ResponseProps(correlation []byte, versioned bool) []byte {
	a.props = AppendString(append(a.props[:0], head...), correlation)
	if versioned {
		a.props = append(a.props, stamp...)
	}
	a.props = append(a.props, tail...)
	return a.props
}

// AppendNotification appends the PUBLISH that tells a watcher of a SET.
func AppendNotification(dst []byte, id uint16, topic string, payload []byte) []byte {
	return AppendPublish(dst, 1, false, id, topic, notifyProps, payload)
}

// NotifyPayload tells of a SET to value.
func NotifyPayload(value []byte) []byte {
	return AppendCommand(nil, "NOTIFY", "SET", "VALUE", string(value))
}

// NotifyTopic is where a client hears of a key that it watches.
func NotifyTopic(client, key string) string {
	upper := func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) }
	return NotifyPrefix + "/" + upper(client) + "/command/notify/" + upper(key)
}

// Key gives a request's key.
func Key(payload []byte) []byte {
	_, rest := blob(payload[4:])
	key, _ := blob(rest)
	return key
}
