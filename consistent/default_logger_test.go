package consistent_test

import (
	"context"
	"log"
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// A processor without WithLogger logs to slog.Default, as it was when New was called. This
// test replaces slog.Default, so it must not run beside others.
func TestDefaultLoggerLogs(t *testing.T) {
	before, writer, flags := slog.Default(), log.Writer(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(writer) // which SetDefault has replaced
		log.SetFlags(flags)
	})
	book := &logBook{}
	slog.SetDefault(slog.New(slog.NewTextHandler(book, nil)))

	conn := dial(t, testserver.Start(t).Addr, client.WithSessionExpiry(time.Hour))
	p, err := consistent.New(conn, "bank")
	if err != nil {
		t.Fatal(err)
	}
	if err := consistent.Handle(p, "deposits/+", accountOf, func(*consistent.Context, account, deposit) (account, []consistent.Message, error) {
		return account{}, nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	<-p.Subscribed()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := book.count("for longer than the server keeps the session"); n != 1 {
		t.Errorf("the warning about the session is logged %d times, want once", n)
	}
}
