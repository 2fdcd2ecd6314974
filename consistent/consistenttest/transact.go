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

// TransactsTogether implements consistent.TogetherConn.
func (c *Conn) TransactsTogether() bool { return true }

// Transact implements consistent.Conn, by the server's own rules. It leaves the acknowledgement
// of messages to the processor.
func (c *Conn) Transact(_ context.Context, r consistent.TxnRequest) (consistent.TxnResult, error) {
	requests := append([]consistent.TxnRequest{r}, r.Also...)
	for n, r := range requests {
		for i := range r.Outputs {
			if name := r.Outputs[i].Topic; !topic.ValidName([]byte(name)) {
				return consistent.TxnResult{Because: n + 1}, &txn.OperationError{Operation: "PUBLISH", Key: name, Err: client.ErrSyntax}
			}
		}
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.ended() {
		return consistent.TxnResult{}, client.ErrClosed
	}
	result, err := c.b.store.transact(requests)
	if err == nil && result.Outcome == txn.Committed {
		for _, r := range requests {
			for i := range r.Outputs {
				c.b.accept(&r.Outputs[i])
			}
			for _, id := range r.Cancels {
				c.b.cancel(id)
			}
		}
	}
	return result, err
}

// transact carries out requests for different keys as one transaction. Each operation has the
// number of its request, from 1, and each ONCE a number of its own behind them.
func (s *store) transact(requests []consistent.TxnRequest) (consistent.TxnResult, error) {
	env, stamp := s.env()
	var t rules.Transaction
	var memos [][2]string
	var of [][2]int // request and message of each ONCE
	w := rules.World{Env: *env, Made: make([]*statestore.Memo, len(requests))}
	for n := range requests {
		r := &requests[n]
		key := []byte(r.Key)
		condition := rules.Condition{Op: n + 1, Check: rules.AtVersion, Version: r.Version}
		if r.Version.IsZero() {
			condition.Check = rules.Absent
		}
		t.If(key, condition)
		write := statestore.Command{Verb: statestore.Set, Key: key, Value: slices.Clone(r.State), ExpiryMs: r.Expiry.Milliseconds()}
		if r.Delete {
			write = statestore.Command{Verb: statestore.Del, Key: key}
		}
		t.Then(rules.Write{Op: n + 1, Command: write})
		for i, m := range r.Messages {
			memos, of = append(memos, [2]string{r.Key, m.ID}), append(of, [2]int{n + 1, i})
			t.Remember(key, rules.Once{Op: len(requests) + len(of), Message: []byte(m.ID), Context: m.Digest, KeepMs: r.Keep.Milliseconds()})
		}
		w.Cells = append(w.Cells, rules.Cell{Entry: s.entries[r.Key], Room: env.Room})
	}
	t.Stamp(stamp, statestore.Stamp{})
	for _, memo := range memos {
		w.Once = append(w.Once, s.memos[memo])
	}
	var out rules.Outcome
	rules.Judge(&t, &w, &out)
	because := out.Reply.Op
	var once [2]int
	if i := because - len(requests) - 1; i >= 0 {
		once = of[i]
		because = once[0]
	}
	switch {
	case out.Reply.Kind == statestore.Error:
		return consistent.TxnResult{Because: because}, out.Reply.Fault
	case out.Reply.Count == statestore.AlreadyDone:
		return consistent.TxnResult{Outcome: txn.AlreadyDone, Because: because, Message: once[1]}, nil
	case out.Reply.Count == statestore.ConditionFailed:
		return consistent.TxnResult{Outcome: txn.ConditionFailed, Because: because, State: slices.Clone(out.Reply.Value), Version: out.Reply.Version}, nil
	}
	s.last = out.Last
	var results []consistent.TxnResult
	for n := range requests {
		if res := &out.Results[n]; res.Changed {
			s.entries[requests[n].Key] = res.Entry.Clone()
		}
		results = append(results, consistent.TxnResult{Outcome: txn.Committed, Version: out.Reply.Values[n].Version, Keep: time.Duration(out.Reply.KeepMs) * time.Millisecond})
	}
	for i, memo := range out.Memos {
		memo.Own()
		s.memos[memos[i]] = memo
	}
	results[0].Also = results[1:]
	return results[0], nil
}
