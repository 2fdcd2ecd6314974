package consistenttest

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	rules "github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Transact implements consistent.Conn, by the server's own rules. It leaves the acknowledgement
// of messages to the processor.
func (c *Conn) Transact(_ context.Context, r consistent.TxnRequest) (consistent.TxnResult, error) {
	for i := range r.Outputs {
		if name := r.Outputs[i].Topic; !topic.ValidName([]byte(name)) {
			return consistent.TxnResult{}, &txn.OperationError{Operation: "PUBLISH", Key: name, Err: client.ErrSyntax}
		}
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.ended() {
		return consistent.TxnResult{}, client.ErrClosed
	}
	result, err := c.b.store.transact(&r)
	if err == nil && result.Outcome == txn.Committed {
		for i := range r.Outputs {
			c.b.accept(&r.Outputs[i])
		}
		for _, id := range r.Cancels {
			c.b.cancel(id)
		}
	}
	return result, err
}

func (s *store) transact(r *consistent.TxnRequest) (consistent.TxnResult, error) {
	env, stamp := s.env()
	var t rules.Transaction
	key := []byte(r.Key)
	condition := rules.Condition{Op: 1, Check: rules.AtVersion, Version: r.Version}
	if r.Version.IsZero() {
		condition.Check = rules.Absent
	}
	t.If(key, condition)
	write := statestore.Command{Verb: statestore.Set, Key: key, Value: slices.Clone(r.State), ExpiryMs: r.Expiry.Milliseconds()}
	if r.Delete {
		write = statestore.Command{Verb: statestore.Del, Key: key}
	}
	t.Then(rules.Write{Op: 2, Command: write})
	memos := make([][2]string, len(r.Messages))
	for i, m := range r.Messages {
		t.Remember(key, rules.Once{Op: 3 + i, Message: []byte(m.ID), Context: m.Digest, KeepMs: r.Keep.Milliseconds()})
		memos[i] = [2]string{r.Key, m.ID}
	}
	t.Stamp(stamp, statestore.Stamp{})
	w := rules.World{Env: *env, Cells: []rules.Cell{{Entry: s.entries[r.Key], Room: env.Room}}, Made: make([]*statestore.Memo, 1)}
	for _, memo := range memos {
		w.Once = append(w.Once, s.memos[memo])
	}
	var out rules.Outcome
	rules.Judge(&t, &w, &out)
	switch {
	case out.Reply.Kind == statestore.Error:
		return consistent.TxnResult{}, out.Reply.Fault
	case out.Reply.Count == statestore.AlreadyDone:
		return consistent.TxnResult{Outcome: txn.AlreadyDone, Message: max(out.Reply.Op-3, 0)}, nil
	case out.Reply.Count == statestore.ConditionFailed:
		return consistent.TxnResult{Outcome: txn.ConditionFailed, State: slices.Clone(out.Reply.Value), Version: out.Reply.Version}, nil
	}
	s.last = out.Last
	if res := &out.Results[0]; res.Changed {
		s.entries[r.Key] = res.Entry.Clone()
	}
	for i, memo := range out.Memos {
		memo.Own()
		s.memos[memos[i]] = memo
	}
	return consistent.TxnResult{Outcome: txn.Committed, Version: out.Reply.Values[0].Version, Keep: time.Duration(out.Reply.KeepMs) * time.Millisecond}, nil
}
