package service

import (
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/spans"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// The user properties of a request that say which trace it is part of (W3C Trace Context).
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// beginSpan begins the span of a request; nil: it has none.
func (ep *endpoint) beginSpan(p *mqtt.Publish) *spans.Span {
	parent, _ := mqtt.FindUserProp(p.Props.Raw, traceparent)
	state, _ := mqtt.FindUserProp(p.Props.Raw, tracestate)
	span := ep.sv.spans.Begin(parent, state)
	if span != nil {
		span.Describe("request", ep.conn.Client, nil) // until the command has been read
	}
	return span
}

// keyOf is the key that a command is about; nil: none.
func keyOf(cmd *statestore.Command) []byte {
	if cmd.Verb == statestore.Scan {
		return nil
	}
	return cmd.Key
}

// endSpan ends the span of a command that is answered when its batch is durable; 0: at once.
func (ep *endpoint) endSpan(verb statestore.Verb, reply *statestore.Reply, batch journal.Seq) {
	span := ep.span
	ep.span = nil
	if verb != 0 {
		span.Named(verb.String())
	}
	ending := &spanEnding{span: span, outcome: outcomeOf(reply).String()}
	if reply.Kind == statestore.Error {
		ending.fault = reply.Fault.Error()
	}
	if batch == 0 || ep.sv.await == nil || !ep.sv.await(batch, ending) {
		ending.Durable(batch)
	}
}

// spanEnding ends a span when a batch is durable. It implements journal.Waiter.
type spanEnding struct {
	span           *spans.Span
	outcome, fault string
}

// Durable implements journal.Waiter.
func (e *spanEnding) Durable(journal.Seq) { e.span.End(e.outcome, e.fault) }
