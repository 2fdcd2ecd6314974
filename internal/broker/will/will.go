package will

import (
	"encoding/json"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Will is the message that a client left to be published if its connection ends without a
// DISCONNECT with reason code 0 (MQTT 5, section 3.1.2.5).
type Will struct {
	Message *message.Message // one reference
	Delay   uint32           // seconds
	Due     int64            // when it is to be published, on the wall clock in ms; 0: the client is connected
	Number  uint64           // of its row: the session's, or its own if the session is not on disk; 0: it has no row
	Charged int64            // bytes that the pool of memory is charged with for it

	// Identity is that of the client. nil: the client had none, or an older version of the
	// server stored the will.
	Identity *access.Identity
}

// overhead is about how many bytes of memory a will takes besides its message's bytes: the
// Will, its Message and a timer.
const overhead = 300

// Memory is how many bytes the pool of memory is charged with for a will.
func Memory(topic, props, payload []byte) int64 {
	return int64(len(topic)+len(props)+len(payload)) + overhead
}

// New copies the will out of the CONNECT of a client that belongs to owner; nil: it has not
// proven who it is. The will's Message Expiry Interval begins when it is published (MQTT 5,
// section 3.1.3.2.4), so the message has the interval in ms in place of a time.
func New(w *mqtt.Will, client string, owner *string) *Will {
	o := message.Outgoing{Topic: w.Topic, RawProps: w.Props.Raw, Payload: w.Payload, QoS: w.QoS, Retain: w.Retain, Publisher: client, Owner: owner}
	m := o.Kept()
	if w.Props.HasMessageExpiry {
		m.ExpiresAt = max(1, int64(w.Props.MessageExpiry)*1000) // 0 would mean that it never expires
	}
	return &Will{Message: m, Delay: w.DelayInterval}
}

// Judge says why no client may have this will.
//
// A will is not a timer (protocol, section 14). MQTT has a time of its own for it, the Will Delay
// Interval, which ends when the client returns. To ignore the request for another one would publish
// the message at a time that the client does not expect, so it is refused.
func Judge(w *mqtt.Will, maxLevels int) (code mqtt.ReasonCode, reason string) {
	tooManyLevels := func(name []byte) bool { return topic.Levels(string(name)) > maxLevels }
	_, when, code, _ := delay.Of(w.Topic, w.Props.Raw)
	switch {
	case !topic.ValidName(w.Topic) || tooManyLevels(w.Topic):
		return mqtt.TopicNameInvalid, "the will's topic name is invalid"
	case code.Failed() || when.Asked:
		return mqtt.ImplementationSpecificError, "a will cannot be a timer: use the Will Delay Interval instead of " + delay.AfterProperty + ", " + delay.AtProperty + " or a topic below $delayed"
	case w.Props.EmptyResponseTopic():
		return mqtt.ProtocolError, "the will's response topic is empty"
	case tooManyLevels(w.Props.ResponseTopic):
		return mqtt.TopicNameInvalid, "the will's response topic has too many levels"
	case w.Props.NotAsFormatted(w.Payload):
		return mqtt.PayloadFormatInvalid, "the will's Payload Format Indicator promises UTF-8 and its payload is not"
	}
	return mqtt.Success, ""
}

// Row is the will's row.
func (w *Will) Row() []byte {
	r := rows.Will{QoS: w.Message.QoS, Retain: w.Message.Retain, Due: w.Due, Delay: w.Delay}
	if w.Identity != nil {
		r.Identity, _ = json.Marshal(w.Identity) // an Identity consists of texts, so this does not fail
	}
	return w.Message.AppendRow(r.Row(), 0)
}
