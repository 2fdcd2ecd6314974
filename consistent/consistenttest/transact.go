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
// number of its request, from 1, and each ONCE and DONE a number of its own behind them.
func (s *store) transact(requests []consistent.TxnRequest) (consistent.TxnResult, error) {
	env, stamp := s.env()
	var t rules.Transaction
	var memos [][2]string
	var of [][2]int // request and message of each ONCE and DONE
	var twice error // a message is named by two operations
	w := rules.World{Env: *env}
	once := func(r *consistent.TxnRequest, id string, o rules.Once, n, i int) {
		memos, of = append(memos, [2]string{r.Key, id}), append(of, [2]int{n + 1, i})
		o.Op, o.Message = len(requests)+len(of), []byte(id)
		w.Once = append(w.Once, s.memos[[2]string{r.Key, id}])
		if fault := t.Remember([]byte(r.Key), o); fault != statestore.None && twice == nil {
			twice = &txn.OperationError{Operation: "ONCE", Key: r.Key, Err: fault}
		}
	}
	for n := range requests {
		r := &requests[n]
		for i := range r.Done {
			d := &r.Done[i]
			once(r, d.ID, rules.Once{Done: true, Context: slices.Clone(d.Digest), Version: statestore.VersionCheck{Given: !d.Version.IsZero(), At: d.Version}}, n, i)
		}
		if len(r.Done) > 0 {
			continue
		}
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
			once(r, m.ID, rules.Once{Open: r.Open, Context: m.Digest, KeepMs: r.Keep.Milliseconds()}, n, i)
		}
	}
	if twice != nil {
		return consistent.TxnResult{}, twice
	}
	t.Stamp(stamp, statestore.Stamp{})
	for _, key := range t.Keys {
		w.Cells = append(w.Cells, rules.Cell{Entry: s.entries[string(key)], Room: env.Room})
	}
	w.Made = make([]*statestore.Memo, len(t.Conditions))
	var out rules.Outcome
	rules.Judge(&t, &w, &out)
	because := out.Reply.Op
	message := 0
	if i := because - len(requests) - 1; i >= 0 {
		because, message = of[i][0], of[i][1]
	}
	switch {
	case out.Reply.Kind == statestore.Error:
		return consistent.TxnResult{Because: because}, out.Reply.Fault
	case out.Reply.Count == statestore.AlreadyDone:
		return consistent.TxnResult{Outcome: txn.AlreadyDone, Because: because, Message: message}, nil
	case out.Reply.Count == statestore.ConditionFailed:
		return consistent.TxnResult{Outcome: txn.ConditionFailed, Because: because, State: slices.Clone(out.Reply.Value), Version: out.Reply.Version}, nil
	}
	s.last = out.Last
	var results []consistent.TxnResult
	written := 0
	for n := range requests {
		result := consistent.TxnResult{Outcome: txn.Committed, Keep: time.Duration(out.Reply.KeepMs) * time.Millisecond}
		if len(requests[n].Done) == 0 {
			if res := &out.Results[written]; res.Changed {
				s.entries[requests[n].Key] = res.Entry.Clone()
			}
			result.Version = out.Reply.Values[written].Version
			written++
		}
		results = append(results, result)
	}
	for i, memo := range out.Memos {
		if memo == nil {
			continue // of a DONE that changes nothing
		}
		memo.Own()
		s.memos[memos[i]] = memo
	}
	results[0].Also = results[1:]
	return results[0], nil
}
