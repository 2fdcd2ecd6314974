package engine

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// load reads every key and the last version.
func (e *Local) load() (err error) {
	if e.last, err = rows.DecodeMeta(e.journal.Meta()); err != nil {
		return err
	}
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
