package crashtest

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/hlc"
	"holdfast/internal/statestore"
)

// operation is a request with what became of it.
type operation struct {
	request
	answer
}

// sighting is a watcher's notification of a SET, or of a deletion.
type sighting struct {
	key     string
	deleted bool
	value   string
	version hlc.Timestamp
	at      int64
}

// searchTime bounds the search for an order of one key's requests. A history
// that is too hard for it counts as unchecked, and never as good.
const searchTime = 20 * time.Second

// verdict is what a check of a history found.
type verdict struct {
	violations []string
	keys       int // whose history was searched
	unchecked  int // of them, given up
}

// judge holds the history of some keys, over lives, against the model.
// Violations that can be drawn are drawn into dir.
func judge(ops []operation, seen []sighting, dir string) verdict {
	var v verdict
	v.violations = append(v.violations, settleBySightings(ops, seen)...)
	v.violations = append(v.violations, checkVersionsRise(ops)...)
	byKey := map[string][]porcupine.Operation{}
	for _, op := range ops {
		byKey[op.key] = append(byKey[op.key], porcupine.Operation{
			Input: op.request, Call: op.call, Output: op.answer, Return: op.ret,
		})
	}
	for _, key := range slices.Sorted(keysOf(byKey)) {
		v.keys++
		result, info := porcupine.CheckOperationsVerbose(keyModel, byKey[key], searchTime)
		switch result {
		case porcupine.Unknown:
			v.unchecked++
		case porcupine.Illegal:
			v.violations = append(v.violations, explain(key, byKey[key], info, dir))
		}
	}
	return v
}

func keysOf[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// settleBySightings holds what watchers were told against what clients wrote: a
// notification of a SET carries its value and version, and whoever was told
// of a SET whose reply was lost proves that it was carried out, and so
// that no crash may undo it.
func settleBySightings(ops []operation, seen []sighting) (violations []string) {
	writes := map[[2]string]*operation{} // by key and value, where no other write has it
	for i := range ops {
		if op := &ops[i]; op.verb == statestore.Set {
			id := [2]string{op.key, op.request.value}
			if _, twice := writes[id]; twice {
				writes[id] = nil
			} else {
				writes[id] = op
			}
		}
	}
	for _, s := range seen {
		if s.deleted {
			continue
		}
		op, known := writes[[2]string{s.key, s.value}]
		switch {
		case !known:
			violations = append(violations, fmt.Sprintf("a watcher of %q was told of the value %q, which nobody wrote", s.key, s.value))
		case op == nil:
		case op.fate == answered && (op.kind != statestore.OK || op.version != s.version):
			violations = append(violations, fmt.Sprintf("a watcher was told of version %v, but %v → %v", s.version, op.request, op.answer))
		case op.fate != answered:
			op.answer = answer{fate: answered, kind: statestore.OK, version: s.version, ret: min(op.ret, s.at)}
		}
	}
	return violations
}

// checkVersionsRise checks what holds across keys: a version that was issued
// after another had been told is higher, on one client's connection even if it
// wasn't told, and none is issued twice.
func checkVersionsRise(ops []operation) (violations []string) {
	var applied []operation
	for _, op := range ops {
		if op.verb == statestore.Set && op.fate == answered && op.kind == statestore.OK {
			applied = append(applied, op)
		}
	}
	told := slices.Clone(applied)
	slices.SortFunc(told, func(a, b operation) int { return cmp.Compare(a.ret, b.ret) })
	slices.SortFunc(applied, func(a, b operation) int { return cmp.Compare(a.call, b.call) })
	var highest operation
	for _, op := range applied {
		for len(told) > 0 && told[0].ret < op.call {
			if told[0].version.Compare(highest.version) > 0 {
				highest = told[0]
			}
			told = told[1:]
		}
		if op.version.Compare(highest.version) <= 0 {
			violations = append(violations, fmt.Sprintf("versions fall: %v → %v, and later %v → %v", highest.request, highest.answer, op.request, op.answer))
		}
	}
	return append(violations, checkOwnOrder(applied)...)
}

func checkOwnOrder(applied []operation) (violations []string) {
	slices.SortFunc(applied, func(a, b operation) int {
		return cmp.Or(strings.Compare(a.client, b.client), cmp.Compare(a.order, b.order))
	})
	versions := map[hlc.Timestamp]operation{}
	for i, op := range applied {
		if i > 0 && applied[i-1].client == op.client && op.version.Compare(applied[i-1].version) <= 0 {
			violations = append(violations, fmt.Sprintf("out of the order sent: %v → %v, and then %v → %v", applied[i-1].request, applied[i-1].answer, op.request, op.answer))
		}
		if other, twice := versions[op.version]; twice {
			violations = append(violations, fmt.Sprintf("one version twice: %v → %v, and %v → %v", other.request, other.answer, op.request, op.answer))
		}
		versions[op.version] = op
	}
	return violations
}

// explain says where the search for an order got stuck, and draws the whole.
func explain(key string, ops []porcupine.Operation, info porcupine.LinearizationInfo, dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "no order of the %d requests to %q explains their answers", len(ops), key)
	file := filepath.Join(dir, "history-"+strings.ReplaceAll(key, "/", "-")+".html")
	if err := porcupine.VisualizePath(keyModel, info, file); err == nil {
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
