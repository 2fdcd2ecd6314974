package server

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	storerows "github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// maxProblems bounds how many problems a report holds; the rest is counted.
const maxProblems = 100

// Report is what Check found in a data directory.
type Report struct {
	Problems  []string // what is wrong, for a person to read
	More      int      // problems beyond those
	Notes     []string // what is no problem, and worth knowing
	Store     storerows.Inventory
	Broker    rows.Inventory
	Unchecked bool // the rows could not be looked at
}

// Sound says whether nothing is wrong.
func (r *Report) Sound() bool { return len(r.Problems) == 0 }

func (r *Report) add(what string) {
	if len(r.Problems) == maxProblems {
		r.More++
		return
	}
	r.Problems = append(r.Problems, what)
}

// String is the summary of what is there.
func (r *Report) String() string {
	if r.Unchecked {
		return "its rows could not be looked at"
	}
	b := &r.Broker
	s := fmt.Sprintf("%d keys (%d bytes), %d sessions, %d subscriptions, %d queued messages, %d retained messages, %d wills",
		r.Store.Keys, r.Store.Bytes, b.Sessions, b.Subscriptions, b.Queued, b.Retained, b.Wills)
	if r.Store.Remembered > 0 {
		s += fmt.Sprintf(", %d remembered messages", r.Store.Remembered)
	}
	if b.Received > 0 {
		s += fmt.Sprintf(", %d inflight QoS 2 publishes", b.Received)
	}
	if b.Timers > 0 {
		s += fmt.Sprintf(", %d messages to be delivered later", b.Timers)
	}
	if b.Orphans > 0 {
		s += fmt.Sprintf("; %d rows belong to no session and will be deleted at the next start", b.Orphans)
	}
	return s
}

// Check verifies a data directory that no server has open: every checksum, and
// every row. An error means that it could not be checked: journal.ErrLocked,
// journal.ErrForeign or journal.ErrNewerFormat among others. Of cfg it uses
// DataDir, FS and Logger.
func Check(cfg Config, progress func(backup.Progress)) (*Report, error) {
	if err := cfg.refuseClusterData(notOfNodes); err != nil {
		return nil, err
	}
	j, damage, err := backup.Check(journal.Options{Dir: cfg.DataDir, FS: cfg.FS, Logger: logger(cfg)}, progress)
	if err != nil {
		return nil, err
	}
	r := &Report{Unchecked: j == nil}
	for _, d := range damage {
		r.add(d.String())
	}
	if j == nil {
		return r, nil
	}
	for _, d := range j.Mended() {
		r.Notes = append(r.Notes, d.String())
	}
	if r.Store, err = storerows.Check(j, r.add); err != nil {
		r.add(fmt.Sprintf("not all keys can be read: %v", err))
	}
	if r.Broker, err = rows.Check(j, r.add); err != nil {
		r.add(fmt.Sprintf("not all of the broker's data can be read: %v", err))
	}
	return r, j.Close()
}
