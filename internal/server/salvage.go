package server

import (
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	storerows "github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Salvage copies what can be read in the data directory of cfg, which no server has open,
// into a data directory that doesn't exist yet, or is empty: a server starts on the copy, and
// Check finds no problem in it. The report is about the copy; its Problems are what could not be
// read or was invalid. Of cfg it uses DataDir, FS and Logger. copied and checked, if not nil, are
// called as rows are copied, and as the copy is verified.
func Salvage(cfg Config, dataDir string, copied, checked func(backup.Progress)) (*Report, error) {
	if err := cfg.refuseClusterData(notOfNodes); err != nil {
		return nil, err
	}
	lost := &Report{}
	var salvaged *Report
	found, err := backup.Salvage(journal.Options{Dir: cfg.DataDir, FS: cfg.FS, Logger: logger(cfg)}, dataDir, copied,
		func(j *journal.Journal) error {
			return errors.Join(storerows.Repair(j, lost.add), rows.Repair(j, lost.add))
		},
		func(dir string) (err error) {
			if salvaged, err = Check(Config{DataDir: dir, FS: cfg.FS}, checked); err == nil && !salvaged.Sound() {
				err = fmt.Errorf("what was salvaged is not sound: %s", salvaged.Problems[0])
			}
			return err
		})
	if err != nil {
		return nil, err
	}
	for _, d := range found.Lost {
		salvaged.add(d.String())
	}
	if found.Older > 0 {
		salvaged.add(fmt.Sprintf("%d rows were left out, as what can't be read may have replaced them", found.Older))
	}
	for _, what := range lost.Problems {
		salvaged.add("left out: " + what)
	}
	salvaged.More += lost.More
	return salvaged, nil
}
