package routing

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/delayed"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// publishTimer publishes the message of a timer that is due, and deletes the timer's rows in
// the same batch.
//
// Like the messages of a transaction it goes to clients when that batch is durable. So after a
// crash a message at QoS 0 is not sent again, and no message is in a queue on disk twice. What
// a transaction would be refused for, an ordinary publish may not be: then the message is
// published as such, which ends a session whose queue is full, or drops its oldest messages, as
// that session or --queue-full wants it; and a message that can't be retained is delivered all
// the same.
func (rt *Router) publishTimer(t *session.Turn, o *message.Outgoing, keys [2][]byte) (delayed.Outcome, journal.Seq) {
	if o.Msg != nil {
		o.Msg.Keep() // Withdraw lets go of one
	}
	x := rt.NewOutbox(t, []message.Outgoing{*o}, nil, nil)
	x.timer = keys
	switch _, _, why := x.Prepare(); why {
	case NotRefused:
		a := rt.Journal.Begin()
		x.Append(a)
		batch := a.End(nil)
		return delayed.Published, max(batch, x.Commit(batch))
	case DiskLow:
		return delayed.NoDisk, 0
	}
	if o.QoS > 0 && rt.refuses(t, o) {
		return delayed.NoRoom, 0
	}
	t.Deletes = append(t.Deletes, keys[0], keys[1])
	with := new(message.PublishRows)
	_, batch, code := rt.Publish(t, o, with)
	switch {
	case with.Unretained:
		rt.Log.Warn("a timer's message was delivered, but not retained: there is no room", "topic", string(o.Topic))
	case code.Failed(): // some queue has filled up meanwhile
		t.Deletes = t.Deletes[:len(t.Deletes)-2]
		return delayed.NoRoom, 0
	}
	return delayed.Published, batch
}
