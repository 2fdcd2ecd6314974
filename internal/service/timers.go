package service

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/broker/delayed"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// timers runs a TIMERS or a CANCEL (protocol, section 14), and answers. They are about the
// timers of the client's own principal, so they need no permission.
func (ep *endpoint) timers(t *broker.Turn, p *mqtt.Publish, q *request, cmd *statestore.Command) {
	var reply statestore.Reply
	var batch journal.Seq
	if cmd.Verb == statestore.Cancel {
		found, after, why := ep.conn.Timers().Cancel(delayed.Cancel{Principal: ep.conn.Identity().OwnedBy(), ID: cmd.Key})
		reply.Kind, batch = statestore.Count, after
		if found {
			reply.Count = 1
		}
		if why != delayed.NotRefused {
			reply = statestore.Reply{Kind: statestore.Error, Fault: statestore.Unreadable}
		}
	} else {
		reply = ep.listTimers(t, q, cmd)
	}
	ep.conn.AnswerWhenDurable(t, p, batch, false, ep.response(q, cmd.Verb, &reply))
	ep.count(t, cmd.Verb, &reply, batch)
}

func (ep *endpoint) listTimers(t *broker.Turn, q *request, cmd *statestore.Command) statestore.Reply {
	var after []byte
	if cmd.HasToken {
		after = cmd.Value
	}
	page, more, err := ep.conn.Timers().List(ep.conn.Identity().OwnedBy(), cmd.Key, after, ep.maxPage(q))
	if err != nil {
		ep.sv.log.Error("timers cannot be listed", "error", err)
		return statestore.Reply{Kind: statestore.Error, Fault: statestore.Unreadable}
	}
	t.Worked += len(page)
	reply := statestore.Reply{Kind: statestore.TimerPage, Timers: make([]statestore.TimerEntry, len(page))}
	for i := range page {
		reply.Timers[i] = statestore.TimerEntry{ID: page[i].ID, DueMs: page[i].At, Topic: page[i].Topic}
	}
	if more {
		reply.Next = page[len(page)-1].ID
	}
	if most := ep.maxPage(q); most != 0 && len(page) > 0 && page[0].Bytes() > most {
		return statestore.Reply{Kind: statestore.Error, Fault: statestore.PageTooLarge}
	}
	return reply
}
