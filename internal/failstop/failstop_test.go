package failstop

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// The line for the log says what and where, the stack leads to the defect, and the
// status is that of a Go program that panics.
func TestAPanicEndsTheProcess(t *testing.T) {
	t.Parallel()
	var log, stack bytes.Buffer
	status := -1
	func() {
		defer func() {
			end(slog.New(slog.NewTextHandler(&log, nil)), &stack, func(s int) { status = s }, time.Minute, recover(), []any{"client", "c1"})
		}()
		defect()
	}()
	if line := log.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, `panic="the defect"`) || !strings.Contains(line, "client=c1") {
		t.Errorf("the log got %q", line)
	}
	if !strings.Contains(stack.String(), "failstop.defect") {
		t.Errorf("the stack doesn't lead to the defect: %s", stack.String())
	}
	if status != Status {
		t.Errorf("it exits with %d", status)
	}
}

func defect() { panic("the defect") }

// blocked is a log whose reader does not read.
type blocked struct{}

func (blocked) Write([]byte) (int, error) { select {} }

func TestTheEndDoesNotWaitForTheLog(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	go end(slog.New(slog.NewTextHandler(blocked{}, nil)), blocked{}, func(int) { close(ended) }, time.Millisecond, "a defect", nil)
	<-ended
}
