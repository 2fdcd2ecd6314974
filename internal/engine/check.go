package engine

import (
	"fmt"

	"holdfast/internal/journal"
)

// Inventory is what Check found on disk.
type Inventory struct {
	Keys  int64
	Bytes int64 // of keys and values
}

// Check reads every row of the engine's in a journal that is open for reading,
// and calls report for each that a start would trip over. An error means that
// not all could be read.
func Check(j *journal.Journal, report func(what string)) (inv Inventory, err error) {
	last, err := decodeMeta(j.Meta())
	if err != nil {
		report(err.Error())
	}
	nodes := map[string]string{}
	err = j.Iterate([]byte(keyPrefix), []byte(afterKeys), func(row, value []byte) bool {
		key := row[len(keyPrefix):]
		entry, err := decodeEntry(value, nodes)
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
		inv.Bytes += size(key, entry)
		return true
	})
	return inv, err
}
