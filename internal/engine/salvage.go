package engine

import (
	"fmt"

	"holdfast/hlc"
	"holdfast/internal/journal"
	"holdfast/internal/statestore"
)

// Repair takes out of a salvaged journal the engine's rows that a start would trip over, and
// calls report for each; it writes the index of deadlines anew, and lets the last version issued
// be none that is earlier than those of the rows. Nothing else may use the journal.
func Repair(j *journal.Journal, report func(what string)) error {
	last, err := decodeMeta(j.Meta())
	if err != nil {
		report(err.Error())
		last = hlc.Timestamp{}
	}
	seen := func(version hlc.Timestamp) {
		if version.Compare(last) > 0 {
			last = version
		}
	}
	change := func(f func(a journal.Append)) {
		j.Admit()
		a := j.Begin()
		f(a)
		a.End(nil)
	}
	drop := func(row []byte, what string) {
		report(what)
		change(func(a journal.Append) { a.Delete(row) })
	}
	nodes := map[string]string{}
	err = j.Iterate([]byte(keyPrefix), []byte(afterKeys), func(row, value []byte) bool {
		var entry statestore.Entry
		switch err := decodeEntry(value, nodes, &entry); {
		case err != nil:
			drop(row, fmt.Sprintf("key %q: %v", row[len(keyPrefix):], err))
		case len(row) == len(keyPrefix):
			drop(row, "a key of no length")
		default:
			seen(entry.Version)
		}
		return true
	})
	if err != nil {
		return err
	}
	change(func(a journal.Append) { a.DeleteRange([]byte(indexPrefix), []byte(afterIndex)) })
	err = j.Iterate([]byte(memoPrefix), []byte(afterMemos), func(row, value []byte) bool {
		m, err := decodeMemo(value, 0)
		if err == nil {
			index := appendIndexRow(nil, m.diskMs, row)
			if _, _, _, err = splitIndexRow(index); err == nil {
				change(func(a journal.Append) { a.Set(index, nil) })
				seen(m.memo.Version)
			}
		}
		if err != nil {
			drop(row, fmt.Sprintf("remembered message %q: %v", row[len(memoPrefix):], err))
		}
		return true
	})
	if err != nil {
		return err
	}
	j.SetMeta(func(dst []byte) []byte { return encodeMeta(dst, last) })
	change(func(journal.Append) {}) // the meta record rides in a batch
	j.WaitDurable()
	return nil
}
