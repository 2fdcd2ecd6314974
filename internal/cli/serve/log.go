package serve

import (
	"errors"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/quietlog"
)

// logFlags say what the log of a server has in it.
type logFlags struct {
	level  slog.LevelVar
	burst  int
	format string
	quiet  *quietlog.Handler // after open
}

func (l *logFlags) addFlags(f *pflag.FlagSet) {
	f.Var(levelValue{&l.level}, "log-level", "least severe log lines to write: debug, info, warn or error")
	f.IntVar(&l.burst, "log-burst", 20, "log lines with the same message that are written per second, before they are only counted; 0: all")
	l.format = "text"
	f.Var(flags.Word(&l.format, "text", "json"), "log-format", "form of log lines: text or json")
}

// open makes the logger. flush writes what is known of suppressed lines.
func (l *logFlags) open(out io.Writer) (log *slog.Logger, flush func()) {
	options := &slog.HandlerOptions{Level: &l.level, ReplaceAttr: errorText}
	var handler slog.Handler = slog.NewTextHandler(out, options)
	if l.format == "json" {
		handler = slog.NewJSONHandler(out, options)
	}
	l.quiet = quietlog.New(handler, quietlog.Options{Burst: l.burst})
	return slog.New(l.quiet), l.quiet.Flush
}

// errorText makes an error its message. The text handler would print with %+v, by which errors of
// Pebble's file system have a stack of many lines.
func errorText(_ []string, a slog.Attr) slog.Attr {
	if err, is := a.Value.Any().(error); is && a.Value.Kind() == slog.KindAny {
		a.Value = slog.StringValue(err.Error())
	}
	return a
}

// levelValue is a flag for the level of the log.
type levelValue struct{ to *slog.LevelVar }

func (v levelValue) String() string {
	if v.to == nil {
		return ""
	}
	return strings.ToLower(v.to.Level().String())
}
func (v levelValue) Type() string { return "LEVEL" }
func (v levelValue) Want() string { return "debug, info, warn or error" }
func (v levelValue) Set(s string) error {
	if err := v.to.UnmarshalText([]byte(s)); err != nil {
		return errors.New("want " + v.Want())
	}
	return nil
}
