package journal

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
)

// pebbleLogger routes Pebble's messages: its running commentary is for
// debugging, its errors are for the person on call.
type pebbleLogger struct{ j *Journal }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.j.o.Logger.Debug("pebble", "message", fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.j.o.Logger.Warn("pebble", "message", fmt.Sprintf(format, args...))
}

// Fatalf must not return: Pebble goes on as if it had succeeded. When Fatal
// has not ended the process, the goroutine stays here, with whatever locks
// Pebble holds; the journal is dead by then.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.j.fail(fatalError(format, args...))
	select {}
}

// fatalError is the error of a call of Fatalf, whose format wraps none. On a full disk it says what to do.
func fatalError(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	for _, a := range args {
		if cause, is := a.(error); is && datadir.IsNoRoom(cause) {
			return fmt.Errorf("%w: is the disk full? Make room on it and start again, nothing is lost", err)
		}
	}
	return err
}

// backgroundErrorPause is how often failing flushes and compactions are worth a
// line: on a full disk Pebble retries them hundreds of times a second.
const backgroundErrorPause = 10 * time.Second

// backgroundError remembers why flushes or compactions fail. Pebble retries
// them, so this is not yet the end; but if commits hang, this is the reason.
func (j *Journal) backgroundError(err error) {
	j.lastBackground.Store(&err)
	text := "writing tables failed, Pebble will retry"
	switch {
	case datadir.IsNoRoom(err):
		j.noRoom()
	case datadir.LacksDescriptor(err):
		j.uptime.LackDescriptor()
		text = "tables find no file descriptor: the server tries again, and writes wait when its memory for rows is full; raise the limit of open files (ulimit -n, fs.file-max)"
	}
	last, now := j.backgroundSaid.Load(), int64(j.uptime.Monotonic())
	if (last == 0 || now-last > int64(backgroundErrorPause)) && j.backgroundSaid.CompareAndSwap(last, now) {
		j.o.Logger.Error(text, "dir", j.o.Dir, "error", pebblefile.PlainError(err))
	}
}

// tablesWritten is called when Pebble has tried to write what is in memory as tables.
func (j *Journal) tablesWritten(info pebble.FlushInfo) {
	if info.Err == nil {
		j.lastBackground.Store(nil)
		wake(j.flushed)
	}
}

// dataCorruption logs that a table does not match its checksums; the reader
// gets an error. Pebble's own reaction would be Fatalf, but what is in
// memory and in other tables is sound, and a server that goes on is worth more
// than one that cannot be started any more.
func (j *Journal) dataCorruption(info pebble.DataCorruptionInfo) {
	if _, again := j.corrupt.LoadOrStore(info.Path, true); !again {
		j.o.Logger.Error("a file is damaged: restore a backup before the server is restarted, it will not start with it",
			"dir", j.o.Dir, "file", info.Path, "error", pebblefile.PlainError(info.Details))
	}
}
