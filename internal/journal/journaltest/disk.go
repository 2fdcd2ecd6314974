// Package journaltest has a disk for tests of what is built on a journal: its
// syncs can be held up, to look at the moment between a write and its
// durability, and made to fail; its tables can be made unreadable; and it can claim
// to be full.
package journaltest

import (
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Disk is a file system whose log is slow or broken when asked to
// be. Release a held disk before closing the journal on it.
type Disk struct {
	vfs.FS

	mu   sync.Mutex
	cond sync.Cond
	held bool  // guarded by mu
	here int   // guarded by mu: syncs that wait
	fail error // guarded by mu

	unreadable error // guarded by mu: of tables; nil: they can be read

	usage vfs.DiskUsage // guarded by mu: what it says of itself; zero: nothing
}

// NewDisk returns a disk that keeps its files in fs.
func NewDisk(fs vfs.FS) *Disk {
	d := &Disk{}
	d.cond.L = &d.mu
	d.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(d.fault))
	return d
}

func (d *Disk) fault(op errorfs.Op) error {
	if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.unreadable
	}
	if !strings.HasSuffix(op.Path, ".journal") || op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.here++
	d.cond.Broadcast()
	for d.held {
		d.cond.Wait()
	}
	d.here--
	return d.fail
}

// FailReads makes reads of tables fail with err; nil: not any more.
func (d *Disk) FailReads(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unreadable = err
}

// SetSpace makes the disk say how much of it is free.
func (d *Disk) SetSpace(free, total uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usage = vfs.DiskUsage{AvailBytes: free, TotalBytes: total, UsedBytes: total - free}
}

// GetDiskUsage implements vfs.FS.
func (d *Disk) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.usage == (vfs.DiskUsage{}) {
		return d.FS.GetDiskUsage(path)
	}
	return d.usage, nil
}

// Hold makes syncs wait until Release.
func (d *Disk) Hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = true
}

// AwaitSync returns when a sync waits on a held disk: what came before it is written.
func (d *Disk) AwaitSync() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.here == 0 {
		d.cond.Wait()
	}
}

// Release lets the waiting syncs go on, to fail with err if it is not nil.
func (d *Disk) Release(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held, d.fail = false, err
	d.cond.Broadcast()
}
