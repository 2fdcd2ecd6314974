package engine

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// load reads every key, the last version, and what is remembered.
func (e *Local) load() (err error) {
	meta, err := rows.DecodeMeta(e.journal.Meta())
	if err != nil {
		return err
	}
	e.last = meta.Last
	if !meta.Counted {
		if meta.Remembered, err = rows.CountRemembered(e.journal); err != nil {
			return err
		}
	}
	e.quota.Remembered, e.tally = meta.Remembered, rows.NewTally(meta.Remembered)
	all, err := rows.Load(e.journal, func(key []byte, entry *statestore.Entry) {
		sh, hash := e.shard(key)
		sh.mu.Lock()
		defer sh.mu.Unlock()
		r := sh.put(table.Record{}, key, hash, entry, hlc.Timestamp{})
		if entry.DeadlineMs != 0 {
			r.SetByWall()
		}
	})
	if err != nil {
		return fmt.Errorf("loading the keys: %w", err)
	}
	e.quota.Keys, e.quota.Bytes = all.Keys, all.Bytes
	if all.Last.Compare(e.last) > 0 {
		e.last = all.Last
	}
	return nil
}
