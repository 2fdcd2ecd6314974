package doctor

import (
	"cmp"
	"os"
	"slices"
	"time"
)

// fsyncs is how often ProbeFsync syncs, and syncedBytes how much it writes before each.
const (
	fsyncs      = 50
	syncedBytes = 4 << 10
)

// ProbeFsync measures how long an fsync takes of a file in dir, which it makes and
// removes: the median and the longest, without the first, which writes the file's length
// as well. It takes at most limit, and one fsync more. The directory must exist.
func ProbeFsync(dir string, limit time.Duration) (median, longest time.Duration, count int64, err error) {
	f, err := os.CreateTemp(dir, "doctor-*.tmp")
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() {
		err = cmp.Or(err, f.Close(), os.Remove(f.Name()))
	}()
	page := make([]byte, syncedBytes)
	if _, err := f.Write(make([]byte, fsyncs*syncedBytes)); err != nil {
		return 0, 0, 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, 0, 0, err
	}
	var took []time.Duration
	for begin := time.Now(); len(took) < fsyncs && (len(took) == 0 || time.Since(begin) < limit); {
		page[0]++
		start := time.Now()
		if _, err := f.WriteAt(page, int64(len(took)*syncedBytes)); err != nil {
			return 0, 0, 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, 0, 0, err
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)-1], int64(len(took)), nil
}
