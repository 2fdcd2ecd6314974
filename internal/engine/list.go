package engine

import (
	"bytes"
	"unicode/utf8"
)

// binaryPage is how many rows BinaryKeys reads at once: in between it holds nothing
// of the journal's, however long its caller takes.
const binaryPage = 10_000

// BinaryKeys calls fn with every key that is not UTF-8, in order, until it returns
// false. SCAN never lists those (protocol, section 7), so an operator needs another
// way to find them. key is valid during the call.
func (e *Local) BinaryKeys(fn func(key []byte) (more bool)) error {
	e.journal.WaitDurable()
	lower := []byte(keyPrefix)
	for {
		var found [][]byte
		var last []byte
		rows := 0
		err := e.journal.Iterate(lower, []byte(afterKeys), func(row, _ []byte) bool {
			key := row[len(keyPrefix):]
			if !utf8.Valid(key) && e.present(key, e.nowMs()) {
				found = append(found, bytes.Clone(key))
			}
			if rows++; rows == binaryPage {
				last = bytes.Clone(row)
			}
			return rows < binaryPage
		})
		if err != nil {
			return err
		}
		for _, key := range found {
			if !fn(key) {
				return nil
			}
		}
		if last == nil {
			return nil
		}
		lower = append(last, 0)
	}
}
