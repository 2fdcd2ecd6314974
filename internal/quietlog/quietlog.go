// Package quietlog bounds a log that clients can make grow: a line that is repeated
// too often is counted instead of written.
//
// The program's log lines have constant messages and name client and reason in their
// fields. So two lines are the same for this package if level and message are. It
// knows nothing else of the program; the serve command puts it before the handler
// that writes.
package quietlog

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Options of New.
type Options struct {
	// Burst is how many lines of one level and message are written per Interval.
	// 0: all.
	Burst int
	// Interval is how long lines are counted together. 0: DefaultInterval.
	Interval time.Duration
}

// DefaultInterval is the Interval of Options that have none.
const DefaultInterval = time.Second

// maxKinds is how many different lines are counted at once. With more of them,
// which takes messages that are not constant, those of one level count as the same.
const maxKinds = 256

// Suppressed is the message of the line that follows an interval in which lines
// were suppressed: its fields are the message, how many there were, and since when.
const Suppressed = "log lines were suppressed"

// Handler passes on the first lines of each level and message in an interval, and
// after it one line that says how many more there were. Debug lines all pass: an
// operator who enables them wants all. Lines from slog.LevelError on pass as well if they can't
// be counted by themselves. It is safe for concurrent use if the next handler is.
type Handler struct {
	next   slog.Handler
	counts *counts // shared by all handlers that WithAttrs and WithGroup make
}

// counts are the lines of the running intervals.
type counts struct {
	interval time.Duration
	burst    atomic.Int64 // Options.Burst, or that of SetBurst
	plain    slog.Handler // without attributes and groups: writes about suppressed lines

	mu    sync.Mutex
	kinds map[kind]*window // guarded by mu, as all windows in it
}

type kind struct {
	level   slog.Level
	message string // empty: of all that are not counted by themselves
}

// window is one interval of one kind of line.
type window struct {
	begun      time.Time
	passed     int
	suppressed int
	end        *time.Timer // nil while nothing was suppressed
}

// New makes a Handler before next.
func New(next slog.Handler, o Options) *Handler {
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	c := &counts{interval: o.Interval, plain: next, kinds: make(map[kind]*window)}
	c.burst.Store(int64(o.Burst))
	return &Handler{next: next, counts: c}
}

// SetBurst changes Options.Burst, also for what WithAttrs and WithGroup have made.
func (h *Handler) SetBurst(lines int) { h.counts.burst.Store(int64(lines)) }

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{next: h.next.WithAttrs(attrs), counts: h.counts}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{next: h.next.WithGroup(name), counts: h.counts}
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && !h.counts.pass(kind{r.Level, r.Message}) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// Flush writes what is known of suppressed lines now. Call it before the process
// ends.
func (h *Handler) Flush() {
	c := h.counts
	c.mu.Lock()
	kinds := make([]kind, 0, len(c.kinds))
	for k := range c.kinds {
		kinds = append(kinds, k)
	}
	c.mu.Unlock()
	for _, k := range kinds {
		c.endWindow(k, nil)
	}
}

// pass counts a line, and says whether it is to be written.
func (c *counts) pass(k kind) bool {
	burst := int(c.burst.Load())
	if burst <= 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	w := c.kinds[k]
	if w == nil && len(c.kinds) >= maxKinds {
		c.forgetEnded(now)
		if len(c.kinds) >= maxKinds {
			if k.level >= slog.LevelError {
				return true
			}
			k.message = ""
			w = c.kinds[k]
		}
	}
	if w == nil || w.end == nil && now.Sub(w.begun) >= c.interval {
		w = &window{begun: now}
		c.kinds[k] = w
	}
	if w.passed < burst {
		w.passed++
		return true
	}
	if w.suppressed++; w.end == nil {
		w.end = time.AfterFunc(w.begun.Add(c.interval).Sub(now), func() { c.endWindow(k, w) })
	}
	return false
}

// forgetEnded makes room for other kinds; c.mu is held.
func (c *counts) forgetEnded(now time.Time) {
	for k, w := range c.kinds {
		if w.end == nil && now.Sub(w.begun) >= c.interval {
			delete(c.kinds, k)
		}
	}
}

// endWindow ends the window of a kind, and logs how many lines were suppressed in it. If
// only is not nil, it does so only if that is the kind's window.
func (c *counts) endWindow(k kind, only *window) {
	c.mu.Lock()
	w := c.kinds[k]
	if w == nil || only != nil && w != only {
		c.mu.Unlock()
		return
	}
	delete(c.kinds, k)
	if w.end != nil {
		w.end.Stop()
	}
	c.mu.Unlock()
	if w.suppressed == 0 {
		return
	}
	message := k.message
	if message == "" {
		message = "various"
	}
	r := slog.NewRecord(time.Now(), k.level, Suppressed, 0)
	r.AddAttrs(slog.String("message", message), slog.Int("count", w.suppressed), slog.Time("since", w.begun))
	_ = c.plain.Handle(context.Background(), r) // there is nowhere to say that a log can't be written
}
