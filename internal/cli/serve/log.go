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
	options := &slog.HandlerOptions{Level: &l.level}
	var handler slog.Handler = slog.NewTextHandler(out, options)
	if l.format == "json" {
		handler = slog.NewJSONHandler(out, options)
	}
	l.quiet = quietlog.New(handler, quietlog.Options{Burst: l.burst})
	return slog.New(l.quiet), l.quiet.Flush
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
