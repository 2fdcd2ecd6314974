package control

import (
	"context"
	"fmt"
	"io"
	"time"
)

// noticePause is how long what needs a leader may take before a person is told that there is none.
const noticePause = time.Second

// NoticeWait writes a line to w if the node that runs on a data directory knows no leader a second after
// the call: what was asked of it waits for one. The caller calls stop when the answer is there; nothing is
// written after that has returned.
func NoticeWait(ctx context.Context, dataDir string, w io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-time.After(noticePause):
		case <-ctx.Done():
			return
		}
		if report, err := Status(ctx, dataDir); err == nil && report.Leader == "" {
			fmt.Fprintf(w, "the cluster has no leader; waiting for one, up to %v (holdfast cluster status says which nodes are missing)\n", leaderPatience)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
