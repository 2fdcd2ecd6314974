package rows

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Inventory is what Check found on disk.
type Inventory struct {
	Keys       int64
	Bytes      int64 // of keys and values
	Remembered int64 // messages
}

// Check reads every row of the engine's in a journal that is open for reading,
// and calls report for each that a start would trip over. An error means that
// not all could be read.
func Check(j *journal.Journal, report func(what string)) (inv Inventory, err error) {
	meta, err := DecodeMeta(j.Meta())
	if err != nil {
		report(err.Error())
	}
	last, nodes := meta.Last, map[string]string{}
	err = j.Iterate([]byte(KeyPrefix), []byte(AfterKeys), func(row, value []byte) bool {
		key := row[len(KeyPrefix):]
		var entry statestore.Entry
		err := DecodeEntry(value, nodes, &entry)
		switch {
		case err != nil:
			report(fmt.Sprintf("key %q: %v", key, err))
			return true
		case len(key) == 0:
			report("there is a key of no length")
		case entry.Version.Compare(last) > 0:
			report(fmt.Sprintf("key %q has version %v, which is later than the last one issued, %v", key, entry.Version, last))
		}
		inv.Keys++
		inv.Bytes += int64(len(key) + len(entry.Value))
		return true
	})
	if err != nil {
		return inv, err
	}
	remembered, err := checkRemembered(j, last, report)
	inv.Remembered = remembered.Messages
	if counted := meta.Remembered; err == nil && meta.Counted && counted != remembered {
		report(fmt.Sprintf("%d messages of %d bytes are remembered, and the record of them says %d of %d bytes", remembered.Messages, remembered.Bytes, counted.Messages, counted.Bytes))
	}
	return inv, err
}

// checkRemembered reads the messages, and holds them against the index of their
// deadlines: one without the other is never forgotten, or counted for nothing.
func checkRemembered(j *journal.Journal, last hlc.Timestamp, report func(what string)) (r statestore.Remembered, err error) {
	var shared int64
	err = j.Iterate([]byte(MemoPrefix), []byte(AfterMemos), func(row, value []byte) bool {
		m, err := DecodeMemo(value, 0)
		if err != nil {
			report(fmt.Sprintf("remembered message %q: %v", row[len(MemoPrefix):], err))
			return true
		}
		if m.What.Version.Compare(last) > 0 {
			report(fmt.Sprintf("remembered message %q has version %v, which is later than the last one issued, %v", row[len(MemoPrefix):], m.What.Version, last))
		}
		r.Add(statestore.MemoChange(nil, m.What, NameSize(row)))
		if m.Shared {
			shared++
		}
		return true
	})
	if err != nil {
		return r, err
	}
	var indexed, sharing int64 // messages in rows of their own, and in those that several share
	err = j.Iterate([]byte(IndexPrefix), []byte(AfterIndex), func(row, value []byte) bool {
		x, err := DecodeIndex(row, value)
		switch {
		case err != nil:
			report(fmt.Sprintf("deadline of a remembered message, %q: %v", row, err))
		case x.Shared:
			sharing += int64(len(x.Names))
		default:
			indexed++
		}
		return true
	})
	if err == nil && (indexed != r.Messages-shared || sharing < shared) {
		report(fmt.Sprintf("%d messages are remembered, and there are deadlines for %d", r.Messages, indexed+min(shared, sharing)))
	}
	return r, err
}
