package serve

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// hangups gives each SIGHUP to a server that reads files of its configuration again, until
// stop. A server without such files ends at SIGHUP, as a program does whose terminal is
// closed.
func hangups(s *server.Server) (hangup <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 1)
	if s.Reloads() {
		signal.Notify(signals, syscall.SIGHUP)
	}
	return signals, func() { signal.Stop(signals) }
}

// untilDone has the server read its configuration's files again at each SIGHUP, until ctx
// ends.
func untilDone(ctx context.Context, s *server.Server, hangup <-chan os.Signal) {
	for {
		select {
		case <-hangup:
			_ = s.Reload() // what went wrong is in the log
		case <-ctx.Done():
			return
		}
	}
}
