package journal

import "fmt"

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
	l.j.fail(fmt.Errorf(format, args...))
	select {}
}

// backgroundError remembers why flushes or compactions fail. Pebble retries
// them, so this is not yet the end; but if commits hang, this is the reason.
func (j *Journal) backgroundError(err error) {
	j.lastBackground.Store(&err)
	j.o.Logger.Error("writing tables failed, Pebble will retry", "dir", j.o.Dir, "error", err)
}

// silent drops the messages of a database that is only being looked at.
type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}

func (silent) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
