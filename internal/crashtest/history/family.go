package history

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

// A family is the keys that transactions link, with the messages that are remembered for
// them: their histories can only be explained together. Each key is a cell as in model.go,
// and a TXN moves several of them in one step, or none.

// memo is what is remembered of one message.
type memo struct {
	known   bool          // the message is done
	version hlc.Timestamp // zero: no client has received it
	write   string        // the write of the message's key that the transaction has made; empty: none
}

// household is the state of a family.
type household struct {
	cells []cell
	memos []memo
}

func (h household) with(key int, c cell) household {
	h.cells = slices.Clone(h.cells)
	h.cells[key] = c
	return h
}

// family is the model of some keys.
type family struct {
	keys     map[string]int
	messages map[Message]int
	memoKeys []int // of each message
}

// newFamily makes the model of the keys and messages of some requests.
func newFamily(ops []Operation) *family {
	f := &family{keys: map[string]int{}, messages: map[Message]int{}}
	key := func(name string) int {
		if _, known := f.keys[name]; !known {
			f.keys[name] = len(f.keys)
		}
		return f.keys[name]
	}
	message := func(m Message) {
		if _, known := f.messages[m]; !known {
			f.messages[m] = len(f.messages)
			f.memoKeys = append(f.memoKeys, key(m.Key))
		}
	}
	for i := range ops {
		op := &ops[i]
		for _, name := range op.Keys() {
			key(name)
		}
		switch {
		case op.Verb == statestore.Load:
			message(Message{op.Key, op.Message})
		case op.Txn != nil:
			for _, c := range op.Txn.Conditions {
				if c.Check == txn.MadeBy {
					message(Message{c.Key, c.Message})
				}
			}
			if op.Txn.Once != (Message{}) {
				message(op.Txn.Once)
			}
		}
	}
	return f
}

// model is the family's for porcupine.
func (f *family) model() porcupine.Model {
	seed := maphash.MakeSeed()
	m := porcupine.NondeterministicModel{
		Init: func() []any {
			return []any{household{cells: make([]cell, len(f.keys)), memos: make([]memo, len(f.messages))}}
		},
		Step: func(state, in, out any) []any {
			var after []any
			for _, h := range f.step(state.(household), in.(Request), out.(Answer)) {
				after = append(after, h)
			}
			return after
		},
		Equal: func(a, b any) bool {
			x, y := a.(household), b.(household)
			return slices.Equal(x.cells, y.cells) && slices.Equal(x.memos, y.memos)
		},
		Hash: func(state any) (sum uint64) {
			h := state.(household)
			for _, c := range h.cells {
				sum = sum*31 + maphash.Comparable(seed, c)
			}
			for _, m := range h.memos {
				sum = sum*31 + maphash.Comparable(seed, m)
			}
			return sum
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v → %v", in, out) },
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
	}
	return m.ToModel()
}

// step gives every state that the family may have after the request, given its answer.
func (f *family) step(h household, in Request, out Answer) (after []household) {
	switch {
	case in.Txn != nil:
		for _, before := range f.expired(h, in, out) {
			if out.Fate == Lost {
				after = append(after, before)
			}
			after = append(after, f.transact(before, in, out)...)
		}
	case in.Verb == statestore.Load:
		for _, before := range f.expired(h, in, out) {
			after = append(after, f.load(before, in, out)...)
		}
	default:
		key := f.keys[in.Key]
		for _, c := range h.cells[key].step(in, out) {
			after = append(after, h.with(key, c))
		}
	}
	for i := range after {
		after[i] = f.teach(after[i])
	}
	return after
}

// expired is the set of states that h may have become by expiry of keys of the request.
func (f *family) expired(h household, in Request, out Answer) []household {
	states := []household{h}
	done := map[int]bool{}
	for _, name := range in.Keys() {
		key := f.keys[name]
		if done[key] {
			continue
		}
		done[key] = true
		var next []household
		for _, s := range states {
			for _, c := range s.cells[key].expired(in.Call, out.Ret) {
				next = append(next, s.with(key, c))
			}
		}
		states = next
	}
	return states
}

// teach gives memos the version of the write that they name, once a client has seen it.
func (f *family) teach(h household) household {
	cloned := false
	for i, m := range h.memos {
		c := &h.cells[f.memoKeys[i]]
		if !m.known || !m.version.IsZero() || m.write == "" || c.write != m.write || c.version.IsZero() {
			continue
		}
		if !cloned {
			h.memos, cloned = slices.Clone(h.memos), true
		}
		h.memos[i].version = c.version
	}
	return h
}

// bindMemo returns the state in which a client has seen the version of a message that is
// done.
func (f *family) bindMemo(h household, message int, v hlc.Timestamp) []household {
	m := h.memos[message]
	if !m.version.IsZero() {
		if m.version != v {
			return nil
		}
		return []household{h}
	}
	key := f.memoKeys[message]
	if c := h.cells[key]; m.write != "" && c.write == m.write {
		bound, ok := c.bind(v)
		if !ok {
			return nil
		}
		h = h.with(key, bound)
	}
	h.memos = slices.Clone(h.memos)
	h.memos[message].version = v
	return []household{h}
}

func (f *family) load(h household, in Request, out Answer) []household {
	key, message := f.keys[in.Key], f.messages[Message{in.Key, in.Message}]
	c := h.cells[key]
	switch {
	case out.Fate != Answered:
		return []household{h}
	case out.Kind != statestore.Loaded:
		return nil
	case h.memos[message].known:
		if out.Count != statestore.Confirmed {
			return nil
		}
		return f.bindMemo(h, message, out.Version)
	case out.Count != statestore.NewMessage || c.present && out.Value != c.value:
		return nil
	}
	var after []household
	for _, seen := range c.seen(out) {
		after = append(after, h.with(key, seen))
	}
	return after
}

// unanswered says whether the reply is lost, so that any is possible but one that the
// notification of a write has ruled out.
func (a *Answer) unanswered() bool { return a.Fate != Answered && a.Kind != statestore.Transacted }

func (f *family) transact(h household, in Request, out Answer) (after []household) {
	if in.Txn.Once != (Message{}) {
		if message := f.messages[in.Txn.Once]; h.memos[message].known {
			switch {
			case out.unanswered():
				return []household{h}
			case out.Kind == statestore.Transacted && out.Count == statestore.AlreadyDone:
				return f.bindMemo(h, message, out.Version)
			}
			return nil
		}
	}
	states := []household{h}
	for i := range in.Txn.Conditions {
		var hold []household
		for _, s := range states {
			met, unmet := f.judge(s, &in.Txn.Conditions[i])
			hold = append(hold, met...)
			after = append(after, f.fail(unmet, in.Txn.Conditions[i].Key, i+1, out)...)
		}
		states = hold
	}
	for _, s := range states {
		after = append(after, f.write(s, in, out)...)
	}
	return after
}

// judge parts h into the states in which the condition holds and those in which it does not:
// one of either, or one of each if it is about a version that no client has seen.
func (f *family) judge(h household, c *Condition) (met, unmet []household) {
	key := f.keys[c.Key]
	was := h.cells[key]
	holds := false
	switch c.Check {
	case txn.Exists:
		holds = was.present
	case txn.Absent:
		holds = !was.present
	case txn.HasValue:
		holds = was.present && was.value == c.Value
	case txn.MadeBy:
		m := h.memos[f.messages[Message{c.Key, c.Message}]]
		holds = was.present && m.known && m.write != "" && m.write == was.write
	case txn.AtVersion:
		for _, m := range was.meets(Request{Ver: statestore.VersionCheck{Given: true, At: c.Version}}) {
			s := f.teach(h.with(key, m.cell))
			if m.met {
				met = append(met, s)
			} else {
				unmet = append(unmet, s)
			}
		}
		return met, unmet
	}
	if holds {
		return []household{h}, nil
	}
	return nil, []household{h}
}

// fail gives the states in which the reply may say that the condition does not hold.
func (f *family) fail(states []household, name string, op int, out Answer) (after []household) {
	if out.unanswered() {
		return states
	}
	if out.Kind != statestore.Transacted || out.Count != statestore.ConditionFailed || out.Op != op {
		return nil
	}
	key := f.keys[name]
	for _, h := range states {
		c := h.cells[key]
		if out.Found != c.present || c.present && out.Value != c.value {
			continue
		}
		for _, seen := range c.seen(out) {
			after = append(after, h.with(key, seen))
		}
	}
	return after
}

// write gives the states after the writes of a TXN whose conditions hold.
func (f *family) write(h household, in Request, out Answer) []household {
	for i := range in.Txn.Writes {
		w := &in.Txn.Writes[i]
		if fault := h.cells[f.keys[w.Key]].fenced(*w); fault != statestore.None {
			if out.unanswered() || out.Kind == statestore.Error && out.Fault == fault && out.Op == len(in.Txn.Conditions)+i+1 {
				return []household{h}
			}
			return nil
		}
	}
	if !out.unanswered() && (out.Kind != statestore.Transacted || out.Count != statestore.Committed) {
		return nil
	}
	done := memo{known: true}
	var last hlc.Timestamp
	for i := range in.Txn.Writes {
		w := in.Txn.Writes[i]
		w.Call = in.Call
		key := f.keys[w.Key]
		was := h.cells[key]
		v := out.Versions[i]
		if out.Fate == Answered {
			changes := w.Verb == statestore.Set || was.present
			if changes == v.IsZero() || changes && (v.Compare(last) <= 0 || v.Compare(was.highest()) <= 0) {
				return nil
			}
			if changes {
				last = v
			}
		}
		now := was.gone()
		if w.Verb == statestore.Set {
			made := was.written(w, Answer{Fate: out.Fate, Version: v, Ret: out.Ret})
			if len(made) == 0 {
				return nil
			}
			now = made[0]
			now.write = fmt.Sprintf("%s#%d/%d", in.Client, in.Order, i)
		} else if v.Compare(now.floor) > 0 {
			now.floor = v // of the deletion itself
		}
		if w.Key == in.Txn.Once.Key {
			done.version, done.write = v, now.write
		}
		h = h.with(key, now)
	}
	if in.Txn.Once == (Message{}) {
		return []household{h}
	}
	if out.Fate == Answered && done.version.IsZero() { // the message has a version of its own
		if out.Version.Compare(last) <= 0 {
			return nil
		}
		done.version = out.Version
	}
	h.memos = slices.Clone(h.memos)
	h.memos[f.messages[in.Txn.Once]] = done
	return []household{h}
}
