// Package logs keeps what a logger of a test writes, so that the test can read it while
// other goroutines log.
package logs

import (
	"strings"
	"sync"
)

// Text is an io.Writer for a slog.Handler. It is safe for concurrent use; the zero Text is
// empty.
type Text struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

// Write appends p.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String returns what was written since the beginning, or since the last Take.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// Take returns the lines that were written since the last Take, without their ends, and
// forgets them.
func (t *Text) Take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSuffix(t.text.String(), "\n")
	t.text.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
