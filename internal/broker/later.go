package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/acks"
	"github.com/holdfast-mqtt/holdfast/internal/broker/delayed"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// JudgeTimed is Judge for a publish that may say that it is to be published later, and when
// that is. It puts the topic behind $delayed/SECONDS/ in the place of the whole, and
// rewrites it.
func (c *Conn) JudgeTimed(p *mqtt.Publish) (when delay.Request, code mqtt.ReasonCode, reason string) {
	if p.Topic, when, code, reason = delay.Of(p.Topic, p.Props.Raw); code != mqtt.Success {
		return when, code, reason
	}
	if when.Asked && c.b.reservedTopics.Handled(p.Topic) {
		return when, mqtt.NotAuthorized, "a request to the state store cannot be delayed"
	}
	if code, reason = c.b.rewrites.Rewrite(&p.Topic, &c.b.reservedTopics); code != mqtt.Success {
		return when, code, reason
	}
	if code, reason = c.Judge(p); code != mqtt.Success || !when.Asked {
		return when, code, reason
	}
	if reason = c.b.Timers.Judge(when); reason != "" {
		code = mqtt.QuotaExceeded
	}
	return when, code, reason
}

// timer is a publish of the client's that is to be published later.
func (c *Conn) timer(p *mqtt.Publish, when delay.Request) delayed.Timer {
	o := c.outgoing(p)
	t := delayed.Timer{Request: when, Message: &o, Identity: c.Identity()}
	if p.Props.HasMessageExpiry {
		t.ExpiryMs = max(1, int64(p.Props.MessageExpiry)*1000) // 0 would mean that it never expires
	}
	return t
}

// publishLater sets a timer. The answer must wait for batch.
func (c *Conn) publishLater(p *mqtt.Publish, when delay.Request) (answer acks.Ack, batch journal.Seq) {
	var received, row []byte
	if sid := c.session.OnDisk(); p.QoS == 2 && sid != 0 {
		received, row = rows.ReceivedKey(sid, p.PacketID), rows.ReceivedRow()
	}
	batch, why := c.b.Timers.Set(c.timer(p, when), received, row)
	answer.Code, answer.Reason = why.Answer()
	return answer, batch
}
