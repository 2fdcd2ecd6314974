package journal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The directory is there
//
// A file that was deleted takes writes and fsyncs without an error, until it is closed.
// So after each fsync the committer asks whether the log still has a name, which costs
// less than a microsecond, and nothing that came after the deletion is acknowledged. A directory
// that was moved or replaced keeps what was acknowledged, but another server may
// begin at its path; that is looked at four times a second.

// presenceInterval is how often the journal looks whether its directory is where it was.
const presenceInterval = 250 * time.Millisecond

var (
	errRemoved = errors.New("the log was deleted while the server ran (was the data directory?): what came after that is not acknowledged")
	errMoved   = errors.New("the data directory was deleted, moved or replaced while the server ran")
	errLock    = errors.New("the file LOCK of the data directory was deleted while the server ran: another one may use the directory")
)

// runPresence fails the journal when its directory is gone.
func (j *Journal) runPresence() {
	tick := time.NewTicker(presenceInterval)
	defer tick.Stop()
	for {
		select {
		case <-j.drained:
			return
		case <-j.failed:
			return
		case <-tick.C:
		}
		err := j.lock.check()
		if err == nil && !j.log.isInPlace() {
			err = errMoved
		}
		if err != nil {
			j.fail(err)
			return
		}
	}
}

// isInPlace says whether the current segment is where a start would look for it.
func (l *writeLog) isInPlace() bool {
	l.syncing.Lock() // the file is not closed meanwhile
	defer l.syncing.Unlock()
	fd := l.file.Fd()
	if fd == vfs.InvalidFd {
		return true // in no directory of the machine's
	}
	l.mu.Lock()
	name := l.segments[len(l.segments)-1].name()
	l.mu.Unlock()
	return isAt(fd, l.j.o.FS.PathJoin(l.j.o.Dir, name))
}

// watchFile notes the lock file where it is all that keeps others out.
func (l *dirLock) watchFile(dir string) {
	if l.dir != nil {
		return
	}
	l.path = filepath.Join(dir, "LOCK")
	l.named, _ = os.Stat(l.path)
}

// check says whether the lock still keeps others out.
func (l *dirLock) check() error {
	if l.named == nil {
		return nil
	}
	switch now, err := os.Stat(l.path); {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(now, l.named):
		return errLock
	}
	return nil
}
