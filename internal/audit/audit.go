// Package audit writes the audit log: which client connected as whom
// and from where, which was refused and why, which took a session over, who changed the
// configuration, and who read a backup. Each event is a line of JSON in a file of its own.
//
// Broker and server call it. It is given no passwords and no tokens; what clients claim is
// cut to a bounded length. A nil *Log writes nothing.
package audit

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/quietlog"
)

// How many lines of one event are written per second, before they are only counted: no
// client fills the disk by being refused. Events of clients that were let in have more.
const (
	burst        = 1000
	refusedBurst = 100
)

// maxText is the longest text of a client's in a line, in bytes.
const maxText = 256

// Log is an audit log. Its methods are safe for concurrent use.
type Log struct {
	path    string // "-": standard output
	out     *file
	refused *quietlog.Handler
	other   *quietlog.Handler
}

// file is what lines are written to.
type file struct {
	mu     lockrank.Mutex[lockrank.Audit] // held over a write
	to     io.Writer                      // guarded by mu, as below
	closer io.Closer                      // nil: it is not ours to close
	closed bool                           // mu: nothing is written any more
	log    *slog.Logger                   // of the server
}

// Open opens an audit log, whose lines go to the end of a file, or to standard output if
// path is "-". log gets what goes wrong with that.
func Open(path string, log *slog.Logger) (*Log, error) {
	l := &Log{path: path, out: &file{to: os.Stdout, log: log}}
	if path != "-" {
		if err := l.Reopen(); err != nil {
			return nil, err
		}
	}
	handler := slog.NewJSONHandler(l.out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.MessageKey {
			a.Key = "event"
		}
		return a
	}})
	l.refused = quietlog.New(handler, quietlog.Options{Burst: refusedBurst})
	l.other = quietlog.New(handler, quietlog.Options{Burst: burst})
	return l, nil
}

// Reopen goes on in a new file of the same name: the old one was moved away. After an
// error it goes on in the old one.
func (l *Log) Reopen() error {
	if l == nil || l.path == "-" {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write the audit log: %w", err)
	}
	l.out.mu.Lock()
	old := l.out.closer
	if l.out.closed {
		old = f
	} else {
		l.out.to, l.out.closer = f, f
	}
	l.out.mu.Unlock()
	if old != nil {
		return old.Close()
	}
	return nil
}

// Close writes what is known of lines that were only counted, and closes the file.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.refused.Flush()
	l.other.Flush()
	l.out.mu.Lock()
	defer l.out.mu.Unlock()
	l.out.to, l.out.closed = io.Discard, true
	if l.out.closer == nil {
		return nil
	}
	return l.out.closer.Close()
}

// Write implements io.Writer for the handler.
func (f *file) Write(line []byte) (int, error) {
	safe := escapeControls(line)
	f.mu.Lock()
	_, err := f.to.Write(safe)
	f.mu.Unlock()
	if err != nil {
		f.log.Error("a line of the audit log is lost: it cannot be written", "error", err)
		return 0, err
	}
	return len(line), nil
}

// escapeControls escapes the control characters that JSON allows in a text: U+007F, and
// U+0080 to U+009F, of which a terminal may take U+009B as the begin of a command.
func escapeControls(line []byte) []byte {
	isControl := func(i int) (r byte, size int) {
		switch c := line[i]; {
		case c == 0x7F:
			return c, 1
		case c == 0xC2 && i+1 < len(line) && line[i+1] < 0xA0: // UTF-8 of U+0080 to U+009F
			return line[i+1], 2
		}
		return 0, 0
	}
	var safe []byte
	from := 0
	for i := 0; i < len(line); i++ {
		if r, size := isControl(i); size > 0 {
			safe = fmt.Appendf(append(safe, line[from:i]...), `\u%04x`, r)
			from = i + size
			i = from - 1
		}
	}
	if safe == nil {
		return line
	}
	return append(safe, line[from:]...)
}

// Client is what is known of a client.
type Client struct {
	ID       string // client identifier
	User     string // user name: proven, or claimed by a client that is refused
	Owner    string // principal; empty: not proven
	Method   string // by which it was proven
	Remote   string // address
	Listener string // empty: unknown
	Protocol byte
}

// attrs makes fields of a client.
func (c *Client) attrs() []slog.Attr {
	a := []slog.Attr{slog.String("client", cut(c.ID)), slog.String("remote", c.Remote)}
	for _, field := range []struct{ name, value string }{{"user", c.User}, {"owner", c.Owner}, {"method", c.Method}, {"listener", c.Listener}} {
		if field.value != "" {
			a = append(a, slog.String(field.name, cut(field.value)))
		}
	}
	return a
}

// cut bounds a text of a client's.
func cut(s string) string {
	if len(s) <= maxText {
		return strings.ToValidUTF8(s, "\ufffd")
	}
	end := maxText
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(s[:end], "\ufffd"), len(s))
}

func (l *Log) write(h *quietlog.Handler, event string, attrs ...slog.Attr) {
	slog.New(h).LogAttrs(context.Background(), slog.LevelInfo, event, attrs...)
}

// Connected says that a client was let in. tookOver says that another connection of its
// client ID ended for it.
func (l *Log) Connected(c *Client, present, tookOver bool) {
	if l == nil {
		return
	}
	l.write(l.other, "connected", append(c.attrs(), slog.Int("version", int(c.Protocol)), slog.Bool("session_present", present))...)
	if tookOver {
		l.write(l.other, "took over", c.attrs()...)
	}
}

// Refused says that a client was not let in.
func (l *Log) Refused(c *Client, code byte, reason string) {
	if l == nil {
		return
	}
	l.write(l.refused, "refused", append(c.attrs(), slog.String("code", fmt.Sprintf("0x%02X", code)), slog.String("reason", cut(reason)))...)
}

// HandshakeRefused says that a client was refused in the TLS handshake for its certificate:
// before it could say who it is. subject is that of the certificate, which nothing has
// verified; empty: the client has shown none.
func (l *Log) HandshakeRefused(listener, remote, subject, reason string) {
	if l == nil {
		return
	}
	attrs := []slog.Attr{slog.String("remote", remote), slog.String("listener", listener)}
	if subject != "" {
		attrs = append(attrs, slog.String("subject", cut(subject)))
	}
	l.write(l.refused, "handshake refused", append(attrs, slog.String("reason", cut(reason)))...)
}

// Reauthenticated says that a client has proven again who it is, or, with a reason, that it
// has failed to and its connection ends.
func (l *Log) Reauthenticated(c *Client, reason string) {
	if l == nil {
		return
	}
	if reason != "" {
		l.write(l.refused, "re-authentication failed", append(c.attrs(), slog.String("reason", cut(reason)))...)
		return
	}
	l.write(l.other, "re-authenticated", c.attrs()...)
}

// Ended says that a connection was ended because its client's identity does not hold any
// longer.
func (l *Log) Ended(c *Client, reason string) {
	if l == nil {
		return
	}
	l.write(l.other, "ended", append(c.attrs(), slog.String("reason", cut(reason)))...)
}

// Reloaded says that a part of the configuration was read again: from which files, and what
// was wrong with them.
func (l *Log) Reloaded(what string, files []string, err error) {
	if l == nil {
		return
	}
	attrs := []slog.Attr{slog.String("what", what), slog.Any("files", files)}
	if err != nil {
		l.write(l.other, "configuration rejected", append(attrs, slog.String("error", err.Error()))...)
		return
	}
	l.write(l.other, "configuration changed", attrs...)
}

// Backup says that a backup was written to a directory, or that it failed.
func (l *Log) Backup(dir string, files, bytes int64, err error) {
	if l == nil {
		return
	}
	if err != nil {
		l.write(l.other, "backup failed", slog.String("to", dir), slog.String("error", err.Error()))
		return
	}
	l.write(l.other, "backup", slog.String("to", dir), slog.Int64("files", files), slog.Int64("bytes", bytes))
}

// Request is one request to the HTTP API.
type Request struct {
	By     string // the administrator's principal; empty: the server does not ask who it is
	Remote string // address
	Method string
	Target string // path and query
	Detail string // what was changed, as far as the target does not say it; may be empty
	Status int    // of the answer
}

// Requested says that an administrator has made a request to the HTTP API, and how it was
// answered.
func (l *Log) Requested(r Request) {
	if l == nil {
		return
	}
	attrs := []slog.Attr{slog.String("remote", r.Remote), slog.String("method", r.Method), slog.String("target", cut(r.Target)), slog.Int("status", r.Status)}
	if r.By != "" {
		attrs = append(attrs, slog.String("owner", cut(r.By)))
	}
	if r.Detail != "" {
		attrs = append(attrs, slog.String("detail", cut(r.Detail)))
	}
	l.write(l.other, "request", attrs...)
}

// RequestRefused says that a request to the listener of --admin was refused before anything
// looked at it, and why; r.By is empty if it is not known who made it.
func (l *Log) RequestRefused(r Request, reason string) {
	if l == nil {
		return
	}
	attrs := []slog.Attr{slog.String("remote", r.Remote), slog.String("method", cut(r.Method)), slog.String("target", cut(r.Target)), slog.Int("status", r.Status)}
	if r.By != "" {
		attrs = append(attrs, slog.String("owner", cut(r.By)))
	}
	l.write(l.refused, "request refused", append(attrs, slog.String("reason", cut(reason)))...)
}

// Operated says that an operator has ended a client's connection, or its session.
func (l *Log) Operated(client string, session bool) {
	if l == nil {
		return
	}
	event := "kicked"
	if session {
		event = "session deleted"
	}
	l.write(l.other, event, slog.String("client", cut(client)))
}
