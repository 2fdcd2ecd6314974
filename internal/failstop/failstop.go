// Package failstop says what a panic does: it stops the process before a defect spreads.
//
// A panic while bytes of a client's are decoded, before any lock is taken, ends
// that client's connection: nothing but the connection has been changed. A panic
// anywhere else ends the process, with one line in the log and a stack, as a failed
// commit does. It may have left a lock locked, which would hang a part of the
// server for good, or left memory in a state that the disk does not have. A start
// takes less than a second and loses nothing that was acknowledged.
//
// Each goroutine of the server defers [End] in its outermost function, last, so that End
// runs before the other calls that this function has deferred. What inner functions have
// deferred runs even before End, in a process that has failed already: it must neither
// acquire a lock that the panic may have left locked, nor write to a client. Goroutines
// that are not ours (Pebble's, the HTTP server's) and the callbacks of timers end the
// process by Go's own means, with the same status.
package failstop

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"time"
)

// Status is the exit status of a process that a panic has ended. Go uses it, too.
const Status = 2

// patience is how long the end of the process waits for the log to take its line.
const patience = 5 * time.Second

// End ends the process if the goroutine that has deferred it panics. where says
// which goroutine it is. For use with defer only.
func End(log *slog.Logger, where string) {
	if p := recover(); p != nil {
		Process(log, p, "where", where)
	}
}

// Process ends the process because of a panic that was recovered with the value p.
// args are what else the log line is to say. To be called within the deferred
// function that has recovered, while the stack is still there.
func Process(log *slog.Logger, p any, args ...any) {
	end(log, os.Stderr, os.Exit, patience, p, args)
}

func end(log *slog.Logger, stack io.Writer, exit func(int), patience time.Duration, p any, args []any) {
	if log == nil {
		log = slog.Default()
	}
	trace, said := fmt.Appendf(nil, "panic: %v\n\n%s", p, debug.Stack()), make(chan struct{}) // as Go itself would
	go func() {
		log.Error("giving up: the server has a defect, please report this with the stack that follows; a restart loses nothing that was acknowledged",
			append([]any{"panic", fmt.Sprint(p)}, args...)...)
		_, _ = stack.Write(trace)
		close(said)
	}()
	select {
	case <-said:
	case <-time.After(patience): // the log's reader does not read
	}
	exit(Status)
}

// Handler is h for an HTTP server, which would recover panics by itself and go on.
func Handler(log *slog.Logger, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer End(log, "HTTP "+r.Method+" "+r.URL.Path)
		h.ServeHTTP(w, r)
	})
}
