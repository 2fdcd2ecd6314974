package service

import (
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
)

// traced shows a command on a key to traces. A SCAN is about no key.
func (ep *endpoint) traced(traces trace.Traces, cmd *statestore.Command, reply *statestore.Reply) {
	if cmd.Verb == statestore.Scan {
		return
	}
	c := ep.traceOf(cmd.Verb.String(), cmd.Key, reply)
	if cmd.Verb == statestore.Set || cmd.Verb == statestore.Store {
		c.Value = cmd.Value
	}
	if !reply.Version.IsZero() {
		c.Version = reply.Version.Append(nil)
	}
	traces.Command(&c)
}

// tracedTxn shows each operation of a transaction that is about a key, with what came of the
// transaction.
func (ep *endpoint) tracedTxn(x *txn.Transaction, reply *statestore.Reply) {
	traces := ep.sv.tracer.Commands()
	if traces == nil {
		return
	}
	for i := range x.Conditions {
		c := ep.traceOf("TXN IF", x.Keys[x.Conditions[i].Key], reply)
		traces.Command(&c)
	}
	for i := range x.Writes {
		w := &x.Writes[i]
		c := ep.traceOf("TXN "+w.Command.Verb.String(), x.Keys[w.Key], reply)
		if w.Command.Verb == statestore.Set {
			c.Value = w.Command.Value
		}
		if i < len(reply.Values) && !reply.Values[i].Version.IsZero() {
			c.Version = reply.Values[i].Version.Append(nil)
		}
		traces.Command(&c)
	}
	for i := range x.Once {
		verb := "TXN ONCE"
		if x.Once[i].Done {
			verb = "TXN DONE"
		}
		c := ep.traceOf(verb, x.Keys[x.Once[i].Key], reply)
		traces.Command(&c)
	}
}

func (ep *endpoint) traceOf(verb string, key []byte, reply *statestore.Reply) trace.Command {
	c := trace.Command{Client: ep.conn.Client, Verb: verb, Key: key, Outcome: outcomeOf(reply).String()}
	if reply.Kind == statestore.Error {
		c.Fault = reply.Fault.Error()
	}
	return c
}
