package service

import (
	"sync"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// transact runs a TXN (protocol, section 12), whose verb has been read, and answers.
func (ep *endpoint) transact(t *broker.Turn, p *mqtt.Publish, q *request) {
	x := transactions.Get().(*transaction)
	ep.run(t, p, q, x)
	if x.reset() {
		transactions.Put(x)
	}
}

// transaction is a TXN, and the memory that it takes to run it.
type transaction struct {
	engine.Txn
	publishes []broker.Timed
	packets   []byte // of the publishes
	settles   []uint16
}

// transactions are there to be used again.
var transactions = sync.Pool{New: func() any { return new(transaction) }}

// maxKeptPackets is how many bytes of packets a transaction has at most that is used again.
const maxKeptPackets = 256 << 10

// reset drops what the transaction refers to. It returns false if it is not to be used again.
func (x *transaction) reset() bool {
	clear(x.publishes)
	return x.Reset() && cap(x.packets) <= maxKeptPackets
}

// run runs a TXN, and answers.
func (ep *endpoint) run(t *broker.Turn, p *mqtt.Publish, q *request, x *transaction) {
	ep.conn.BeginDecoding()
	refused := protocol.ParseTxn(p.Payload, protocol.TxnLimits{MaxKey: ep.sv.maxKey, MaxOperations: ep.sv.maxTxn}, &x.Transaction)
	x.Stamp(protocol.ParseStamp(mqtt.FindUserProp(p.Props.Raw, q.dialect.TimeProperty)),
		protocol.ParseStamp(mqtt.FindUserProp(p.Props.Raw, q.dialect.TokenProperty)))
	ep.conn.EndDecoding()
	if refused.Fault == statestore.None {
		if op := ep.denied(&x.Txn); op != 0 {
			refused = protocol.TxnFault{Op: op, Fault: statestore.NotAuthorized}
		}
	}
	if refused.Fault == statestore.None {
		refused = ep.accompany(t, x)
	}
	if refused.Fault != statestore.None {
		ep.sv.stats.TxnRefused.Add(1)
		reply := statestore.Reply{Kind: statestore.Error, Op: refused.Op, Fault: refused.Fault, Bound: refused.Bound}
		ep.tracedTxn(&x.Transaction, &reply)
		ep.conn.Answer(t, p, mqtt.Success, "", ep.response(q, statestore.Txn, &reply))
		ep.count(t, statestore.Txn, &reply, 0)
		return
	}
	t.Worked += len(x.Keys) + len(x.Publishes) + len(x.Once) + len(x.Cancels)
	wait := ep.session.Transact(&x.Txn)
	reply := x.Reply()
	if c, ok := x.Companion.(*companion); ok && len(x.Cancels) > 0 && reply.Kind == statestore.Transacted && reply.Count == statestore.Committed {
		reply.Ended = append(c.ended(), reply.Ended...)
	}
	ep.countTxn(reply)
	ep.tracedTxn(&x.Transaction, reply)
	ep.fit(q, reply)
	ep.conn.AnswerWhenBothDurable(t, p, wait.Batch, wait.Asked, wait.Then, ep.response(q, statestore.Txn, reply))
	ep.count(t, statestore.Txn, reply, max(wait.Batch, wait.Then))
}

// denied returns the first operation that the client may not do, 0 if it may do all. Each
// needs what it would need by itself; ONCE reads and writes what is remembered of its key, and DONE
// writes it.
func (ep *endpoint) denied(x *engine.Txn) (op int) {
	may, id := ep.sv.may, ep.conn.Identity()
	if may == nil {
		return 0
	}
	first := func(denied int) {
		if op == 0 || denied < op {
			op = denied
		}
	}
	for i := range x.Conditions {
		if c := &x.Conditions[i]; !may.MayRead(id, x.Keys[c.Key]) {
			first(c.Op)
		}
	}
	for i := range x.Writes {
		if w := &x.Writes[i]; !may.MayWrite(id, x.Keys[w.Key]) {
			first(w.Op)
		}
	}
	for i := range x.Once {
		if o := &x.Once[i]; !(o.Done || may.MayRead(id, x.Keys[o.Key])) || !may.MayWrite(id, x.Keys[o.Key]) {
			first(o.Op)
		}
	}
	return op
}

// aroundCondition is what the reply that a condition failed has around the key's value, in
// bytes, at most.
const aroundCondition = 512

// fit leaves the key's value out of the reply that a condition failed, if the client can't
// take it.
func (ep *endpoint) fit(q *request, reply *statestore.Reply) {
	if most := ep.maxPage(q); most != 0 && len(reply.Value)+aroundCondition > most {
		reply.Value = nil
	}
}

func (ep *endpoint) countTxn(reply *statestore.Reply) {
	stats := &ep.sv.stats
	switch {
	case reply.Kind != statestore.Transacted:
		stats.TxnRefused.Add(1)
	case reply.Count == statestore.Committed:
		stats.TxnCommitted.Add(1)
	case reply.Count == statestore.AlreadyDone:
		stats.TxnRepeated.Add(1)
	default:
		stats.TxnUnmet.Add(1)
	}
}
