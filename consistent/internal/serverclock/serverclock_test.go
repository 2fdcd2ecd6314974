package serverclock

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/stores"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// versionIn is a version of a server whose clock is so far ahead of this machine's.
func versionIn(ahead time.Duration) hlc.Timestamp {
	return hlc.Timestamp{Wall: uint64(time.Now().Add(ahead).UnixMilli()), Node: "server"}
}

// about tells whether a clock is so far ahead of the machine's, within a few seconds.
func about(c *Clock, ahead, want time.Duration) bool {
	got := time.Until(c.Now(ahead))
	return got > want-10*time.Second && got < want+10*time.Second
}

func TestClock(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := Clock{Log: slog.New(slog.NewTextHandler(&log, nil))}
	if !about(&c, 0, 0) || !about(&c, time.Hour, -time.Hour) {
		t.Error("without a version it is not the machine's clock, less what that is ahead")
	}
	for _, lead := range []time.Duration{0, -time.Hour, 100 * time.Second} {
		if c.Saw(versionIn(lead)); !about(&c, 0, 0) {
			t.Errorf("a version in %v changes the time", lead)
		}
	}
	c.Saw(hlc.Timestamp{})
	if log.Len() > 0 {
		t.Errorf("log: %s", &log)
	}
	for range 2 {
		if c.Saw(versionIn(10 * time.Minute)); !about(&c, 0, 10*time.Minute) {
			t.Error("the machine's clock is behind, and was not corrected")
		}
	}
	if n := strings.Count(log.String(), "behind the server's"); n != 1 {
		t.Errorf("said %d times: %s", n, &log)
	}
	if c.Saw(versionIn(0)); !about(&c, 0, 0) {
		t.Error("the machine's clock was set right")
	}
	if c.Saw(versionIn(10 * time.Minute)); strings.Count(log.String(), "behind the server's") != 2 {
		t.Error("not said again")
	}
}

// The machine's clock is set right after the version came, by which it was behind.
func TestClockIsSetRight(t *testing.T) {
	t.Parallel()
	right := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := reading{wall: right.Add(-10 * time.Minute)}
	c := Clock{Log: slog.New(slog.DiscardHandler), read: func() reading { return now }}
	c.Saw(hlc.Timestamp{Wall: uint64(right.UnixMilli()), Node: "server"})
	now.wall, now.monotonic = now.wall.Add(time.Hour), time.Hour
	if got := c.Now(0); !got.Equal(right.Add(time.Hour)) {
		t.Errorf("an hour later it is %v", got)
	}
	now.wall = right.Add(time.Hour + time.Second)
	if got := c.Now(0); !got.Equal(now.wall) {
		t.Errorf("with a clock that is right it is %v", got)
	}
}

// conn answers with a version in so long.
type conn struct {
	in    time.Duration
	asked int
}

func (c *conn) Store(_ context.Context, r stores.StoreRequest) (client.StoreResult, error) {
	c.asked++
	if !r.Delete || r.MessageID == "" || !r.Version.IsZero() {
		return client.StoreResult{}, client.ErrSyntax
	}
	return client.StoreResult{Outcome: client.Stored, Version: versionIn(c.in)}, nil
}

func TestAsk(t *testing.T) {
	t.Parallel()
	c, at := Clock{Log: slog.New(slog.DiscardHandler)}, &conn{in: time.Hour}
	for range 3 {
		c.Ask(t.Context(), at, "k", time.Minute)
	}
	if at.asked != 1 || !about(&c, 0, time.Hour) {
		t.Errorf("asked %d times; the time is %v", at.asked, c.Now(0))
	}
}
