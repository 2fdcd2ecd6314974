// Package history judges what clients of the state store saw, over lives and kills: the
// requests to each key must be explained by some order of them (model.go), versions must
// rise, and each change of which a watcher was notified must have been written
// (history.go).
package history

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Sighting is a watcher's notification of a SET, or of a deletion.
type Sighting struct {
	Key     string
	Deleted bool
	Value   string
	Version hlc.Timestamp
	At      int64
}

// searchTime bounds the search for an order of one key's requests. A history
// whose search takes longer counts as unchecked, and never as good.
const searchTime = 20 * time.Second

// Verdict is what a check of a history found.
type Verdict struct {
	Violations []string
	Keys       int // whose history was searched
	Unchecked  int // of them: the search took too long
}

// Judge compares the history of some keys, over several lives, with the model. It draws
// the histories that violate the model into files in dir.
func Judge(ops []Operation, seen []Sighting, dir string) Verdict {
	var v Verdict
	v.Violations = append(v.Violations, settleBySightings(ops, seen)...)
	v.Violations = append(v.Violations, checkVersionsRise(ops)...)
	families := inFamilies(ops)
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		model := keyModel
		if f.joint {
			model, name = newFamily(f.ops).model(), "the keys of "+name
		}
		v.Keys += len(f.keys)
		var searched []porcupine.Operation
		for _, op := range f.ops {
			searched = append(searched, porcupine.Operation{Input: op.Request, Call: op.Call, Output: op.Answer, Return: op.Ret})
		}
		result, info := porcupine.CheckOperationsVerbose(model, searched, searchTime)
		switch result {
		case porcupine.Unknown:
			v.Unchecked += len(f.keys)
		case porcupine.Illegal:
			v.Violations = append(v.Violations, explain(name, searched, model, info, dir))
		}
	}
	return v
}

// relatives are the requests to keys that transactions link, directly or through others, or
// to one key that no transaction names.
type relatives struct {
	keys  map[string]bool
	joint bool // there is a TXN, or a LOAD
	ops   []Operation
}

// inFamilies parts the requests. Each part has the name of its first key.
func inFamilies(ops []Operation) map[string]*relatives {
	parent := map[string]string{}
	var root func(key string) string
	root = func(key string) string {
		if p, known := parent[key]; known && p != key {
			parent[key] = root(p)
			return parent[key]
		}
		parent[key] = key
		return key
	}
	for i := range ops {
		keys := ops[i].Keys()
		for _, key := range keys {
			a, b := root(keys[0]), root(key)
			parent[max(a, b)] = min(a, b)
		}
	}
	families := map[string]*relatives{}
	for i := range ops {
		keys := ops[i].Keys()
		name := root(keys[0])
		f := families[name]
		if f == nil {
			f = &relatives{keys: map[string]bool{}}
			families[name] = f
		}
		for _, key := range keys {
			f.keys[key] = true
		}
		f.joint = f.joint || ops[i].Txn != nil || ops[i].Verb == statestore.Load
		f.ops = append(f.ops, ops[i])
	}
	return families
}

// settleBySightings compares the notifications of watchers with what clients wrote. A
// notification of a SET carries its value and version. If the reply to the SET was lost,
// the notification proves that the server executed it, so no crash may undo it.
func settleBySightings(ops []Operation, seen []Sighting) (violations []string) {
	writes := map[[2]string]*Operation{} // by key and value, where no other write has it
	note := func(key, value string, op *Operation) {
		id := [2]string{key, value}
		if _, twice := writes[id]; twice {
			op = nil
		}
		writes[id] = op
	}
	for i := range ops {
		op := &ops[i]
		switch {
		case op.Verb == statestore.Set:
			note(op.Key, op.Request.Value, op)
		case op.Txn != nil:
			for _, w := range op.Txn.Writes {
				if w.Verb == statestore.Set {
					note(w.Key, w.Value, op)
				}
			}
		}
	}
	for _, s := range seen {
		if s.Deleted {
			continue
		}
		op, known := writes[[2]string{s.Key, s.Value}]
		switch {
		case !known:
			violations = append(violations, fmt.Sprintf("a watcher of %q was told of the value %q, which no client wrote", s.Key, s.Value))
		case op == nil:
		case op.Txn != nil:
			violations = append(violations, settleTxn(op, s)...)
		case op.Fate == Answered && (op.Kind != statestore.OK || op.Version != s.Version):
			violations = append(violations, fmt.Sprintf("a watcher was told of version %v, but %v → %v", s.Version, op.Request, op.Answer))
		case op.Fate != Answered:
			op.Answer = Answer{Fate: Answered, Kind: statestore.OK, Version: s.Version, Ret: min(op.Ret, s.At)}
		}
	}
	return violations
}

// settleTxn is the same for a TXN. Its lost reply is not known, but that it is done.
func settleTxn(op *Operation, s Sighting) (violations []string) {
	if op.Fate != Answered {
		op.Answer = Answer{Fate: Executed, Kind: statestore.Transacted, Count: statestore.Committed, Ret: min(op.Ret, s.At)}
		return nil
	}
	for i, w := range op.Txn.Writes {
		if w.Key == s.Key && op.Versions[i] != s.Version {
			violations = append(violations, fmt.Sprintf("a watcher of %q was told of version %v, but %v → %v", s.Key, s.Version, op.Request, op.Answer))
		}
	}
	return violations
}

// checkVersionsRise checks versions across keys. A version that is issued after a client
// has received another one is higher. On one connection versions rise in the order of the
// requests, even if their replies were lost. No version is issued twice.
func checkVersionsRise(ops []Operation) (violations []string) {
	var applied []Operation
	for _, op := range ops {
		applied = append(applied, written(op)...)
	}
	told := slices.Clone(applied)
	slices.SortFunc(told, func(a, b Operation) int { return cmp.Compare(a.Ret, b.Ret) })
	slices.SortFunc(applied, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	var highest Operation
	for _, op := range applied {
		for len(told) > 0 && told[0].Ret < op.Call {
			if told[0].Version.Compare(highest.Version) > 0 {
				highest = told[0]
			}
			told = told[1:]
		}
		if op.Version.Compare(highest.Version) <= 0 {
			violations = append(violations, fmt.Sprintf("versions fall: %v → %v, and later %v → %v", highest.Request, highest.Answer, op.Request, op.Answer))
		}
	}
	return append(violations, checkOwnOrder(applied)...)
}

func checkOwnOrder(applied []Operation) (violations []string) {
	slices.SortFunc(applied, func(a, b Operation) int {
		return cmp.Or(strings.Compare(a.Client, b.Client), cmp.Compare(a.Order, b.Order), a.Version.Compare(b.Version))
	})
	versions := map[hlc.Timestamp]Operation{}
	for i, op := range applied {
		if i > 0 && applied[i-1].Client == op.Client && op.Version.Compare(applied[i-1].Version) <= 0 {
			violations = append(violations, fmt.Sprintf("out of the order sent: %v → %v, and then %v → %v", applied[i-1].Request, applied[i-1].Answer, op.Request, op.Answer))
		}
		if other, twice := versions[op.Version]; twice {
			violations = append(violations, fmt.Sprintf("one version twice: %v → %v, and %v → %v", other.Request, other.Answer, op.Request, op.Answer))
		}
		versions[op.Version] = op
	}
	return violations
}

// explain says at which requests the search for an order failed, and draws the history.
func explain(key string, ops []porcupine.Operation, model porcupine.Model, info porcupine.LinearizationInfo, dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "no order of the %d requests to %q explains their answers", len(ops), key)
	file := filepath.Join(dir, "history-"+strings.NewReplacer("/", "-", " ", "-").Replace(key)+".html")
	if err := porcupine.VisualizePath(model, info, file); err == nil {
		fmt.Fprintf(&b, " (drawn in %s)", file)
	}
	var longest []porcupine.Operation
	for _, parts := range info.PartialLinearizationsOperations() {
		for _, part := range parts {
			if len(part) > len(longest) {
				longest = part
			}
		}
	}
	inOrder := map[[2]any]bool{}
	for _, op := range longest {
		inOrder[[2]any{op.Input, op.Output}] = true
	}
	fmt.Fprintf(&b, "; the longest order that does ends with\n")
	for _, op := range longest[max(0, len(longest)-6):] {
		fmt.Fprintf(&b, "    %v → %v\n", op.Input, op.Output)
	}
	fmt.Fprintf(&b, "  and what can't follow it begins with\n")
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	shown := 0
	for _, op := range ops {
		if !inOrder[[2]any{op.Input, op.Output}] && shown < 6 {
			shown++
			fmt.Fprintf(&b, "    %v → %v\n", op.Input, op.Output)
		}
	}
	return b.String()
}
