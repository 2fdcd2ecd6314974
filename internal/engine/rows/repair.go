package rows

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Repair takes out of a salvaged journal the engine's rows that a start would trip over, and
// calls report for each; it writes the index of deadlines anew, and lets the last version issued
// be none that is earlier than those of the rows, and counts the remembered messages. Nothing else may use the journal.
func Repair(j *journal.Journal, report func(what string)) error {
	meta, err := DecodeMeta(j.Meta())
	if err != nil {
		report(err.Error())
	}
	last := meta.Last
	var remembered statestore.Remembered
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
	err = j.Iterate([]byte(KeyPrefix), []byte(AfterKeys), func(row, value []byte) bool {
		var entry statestore.Entry
		switch err := DecodeEntry(value, nodes, &entry); {
		case err != nil:
			drop(row, fmt.Sprintf("key %q: %v", row[len(KeyPrefix):], err))
		case len(row) == len(KeyPrefix):
			drop(row, "a key of no length")
		default:
			seen(entry.Version)
		}
		return true
	})
	if err != nil {
		return err
	}
	change(func(a journal.Append) { a.DeleteRange([]byte(IndexPrefix), []byte(AfterIndex)) })
	err = j.Iterate([]byte(MemoPrefix), []byte(AfterMemos), func(row, value []byte) bool {
		m, err := DecodeMemo(value, 0)
		if err == nil {
			if _, err = KeyOf(row[len(MemoPrefix):]); err == nil {
				m.Shared = false
				change(func(a journal.Append) { WriteMemo(a, row, &m, m.DiskMs, 0) })
				remembered.Add(statestore.MemoChange(nil, m.What, NameSize(row)))
				seen(m.What.Version)
			}
		}
		if err != nil {
			drop(row, fmt.Sprintf("remembered message %q: %v", row[len(MemoPrefix):], err))
		}
		return true
	})
	if err != nil {
		return err
	}
	j.SetMeta(func(dst []byte, _ journal.Seq) []byte {
		return AppendMeta(dst, Meta{Last: last, Remembered: remembered})
	})
	change(func(journal.Append) {}) // the meta record rides in a batch
	j.WaitDurable()
	return nil
}
