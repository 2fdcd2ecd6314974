package serve

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// untilDone has the server read its configuration's files again at each SIGHUP, until ctx
// ends. A server without such files ends at SIGHUP, as a program does whose terminal is
// closed.
func untilDone(ctx context.Context, s *server.Server) {
	hangup := make(chan os.Signal, 1)
	if s.Reloads() {
		signal.Notify(hangup, syscall.SIGHUP)
		defer signal.Stop(hangup)
	}
	for {
		select {
		case <-hangup:
			_ = s.Reload() // what went wrong is in the log
		case <-ctx.Done():
			return
		}
	}
}
