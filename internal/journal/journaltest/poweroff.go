package journaltest

import (
	"math/rand/v2"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// ChangesDisk says whether an operation changes what is on the disk.
func ChangesDisk(op errorfs.Op) bool {
	switch op.Kind {
	case errorfs.OpCreate, errorfs.OpLink, errorfs.OpRemove, errorfs.OpRename, errorfs.OpReuseForWrite, errorfs.OpFileWrite,
		errorfs.OpFileWriteAt, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpFileClose:
		return true
	}
	return false
}

// PowerOff is what a disk may hold in its directory "data" after the power has failed: what was synced,
// and of the rest so many percent of the blocks and names. Pebble relies on a file system that keeps
// names in the order in which they came, for that of a new manifest and the marker that points to it.
func PowerOff(mem *vfs.MemFS, percent int, rng *rand.Rand) *vfs.MemFS {
	for {
		left := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		desc, err := pebble.Peek("data", left)
		if err == nil && desc.Exists {
			_, err = left.Stat(desc.ManifestFilename)
		}
		if err == nil || percent == 0 || percent == 100 {
			return left
		}
	}
}
