package will

import (
	"encoding/json"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Will is what a client left to be published if it goes without saying so.
type Will struct {
	Message *message.Message // one reference
	Delay   uint32           // seconds
	Due     int64            // on the wall clock in ms, while the client is away; 0: it is connected
	Number  uint64           // of its row: the session's, or its own if the session is not on disk; 0: it has none
	Charged int64            // bytes that the pool of memory is charged with for it
	By      *access.Identity // the client's; nil: it had none, or left the will to an older version of the server
}

// overhead is about what a will takes of memory besides its bytes: itself, its
// Message and a timer.
const overhead = 300

// Memory is what a will of so many bytes is charged with.
func Memory(topic, props, payload []byte) int64 {
	return int64(len(topic)+len(props)+len(payload)) + overhead
}

// New copies the will out of the client's CONNECT. Its expiry counts from its publication.
func New(w *mqtt.Will, client string) *Will {
	o := message.Outgoing{Topic: w.Topic, RawProps: w.Props.Raw, Payload: w.Payload, QoS: w.QoS, Retain: w.Retain, Publisher: client}
	m := o.Kept()
	if w.Props.HasMessageExpiry {
		m.ExpiresAt = max(1, int64(w.Props.MessageExpiry)*1000) // an interval until it is published; 0 would be never
	}
	return &Will{Message: m, Delay: w.DelayInterval}
}

// Row is the will's row.
func (w *Will) Row() []byte {
	r := rows.Will{QoS: w.Message.QoS, Retain: w.Message.Retain, Due: w.Due, Delay: w.Delay}
	if w.By != nil {
		r.By, _ = json.Marshal(w.By) // of texts, which always succeeds
	}
	return w.Message.AppendRow(r.Row(), 0)
}
