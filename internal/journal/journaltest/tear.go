package journaltest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// sector is what a disk writes as a whole, or not at all.
const sector = 512

// TearSectors is what a disk may hold after the power has failed: names, and files other
// than those that end with suffix, either as they were synced or as they were written; of
// the files that end with suffix each sector that was written and not synced as it was
// before or as it was written. mem is a crashable file system, with the files in dir.
func TearSectors(mem *vfs.MemFS, dir, suffix string, rng *rand.Rand) *vfs.MemFS {
	synced := mem.CrashClone(vfs.CrashCloneCfg{})
	written := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
	left := synced
	if rng.IntN(2) == 0 {
		left = written
	}
	names, err := left.List(dir)
	if err != nil {
		return left // it was not there yet
	}
	for _, name := range names {
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		path := left.PathJoin(dir, name)
		before, errBefore := content(synced, path)
		after, errAfter := content(written, path)
		if errBefore != nil || errAfter != nil {
			continue // its name is not durable, or is gone
		}
		replace(left, path, tear(before, after, rng))
	}
	return left
}

// tear takes each sector from one of two versions of a file. Its length is that of either.
func tear(before, after []byte, rng *rand.Rand) []byte {
	torn := make([]byte, max(len(before), len(after)))
	copy(torn, before)
	half := rng.IntN(3) // few, half or most of the sectors were written
	for at := 0; at < len(after); at += sector {
		if end := min(at+sector, len(after)); rng.IntN(4) <= half {
			copy(torn[at:end], after[at:end])
		}
	}
	if rng.IntN(2) == 0 {
		torn = torn[:len(before)]
	}
	return torn
}

func content(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return bytes.Clone(b), err
}

// replace gives a file in memory another content, which is on the disk.
func replace(fs vfs.FS, path string, content []byte) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		f, err = fs.OpenDir(fs.PathDir(path))
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		panic(fmt.Sprintf("a file in memory cannot be written: %v", err))
	}
}
