package requests

import (
	"log"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
)

// CommitAlone is a commit of one row to Pebble that waits for its fsync, with
// nothing around it: what no durable SET can undercut.
const CommitAlone = "one commit with pebble.Sync"

// committer is a Pebble database that is opened at the first commit.
type committer struct {
	dir string
	db  *pebble.DB
}

func newCommitter(dir string) *committer { return &committer{dir: filepath.Join(dir, "pebble-alone")} }

func (c *committer) close() {
	if c.db != nil {
		c.db.Close()
	}
}

// round commits rows, one after the other, for d.
func (c *committer) round(d time.Duration) (report.Figures, error) {
	if c.db == nil {
		db, err := pebble.Open(c.dir, &pebble.Options{FormatMajorVersion: pebble.FormatNewest, FS: vfs.Default, Logger: silent{}})
		if err != nil {
			return report.Figures{}, err
		}
		c.db = db
	}
	var h latency.Histogram
	key, value := []byte(load.KeyName(0)), make([]byte, 128) // as long as a SET's row
	start := time.Now()
	for time.Since(start) < d {
		at := time.Now()
		if err := c.db.Set(key, value, pebble.Sync); err != nil {
			return report.Figures{}, err
		}
		h.Add(time.Since(at), 1)
	}
	return report.FiguresOf(&h, time.Since(start), 0), nil
}

type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, args ...any) {
	log.Printf(format, args...)
	panic("pebble")
}
