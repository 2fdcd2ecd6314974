package server

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// A file that cannot be read for a reason that may pass, such as that no descriptor is
// left, is read again without another change, as soon as it can be; the log says once that
// the old content stays, and why. Content that is wrong is not read again before it changes.
func TestFilesThatCannotBeReadAreTriedAgain(t *testing.T) {
	t.Parallel()
	noDescriptor := &fs.PathError{Op: "open", Path: "policy.yaml", Err: syscall.EMFILE}
	for name, test := range map[string]struct {
		err   error
		again bool
	}{
		"no descriptor is left":   {noDescriptor, true},
		"the owner may not read":  {&fs.PathError{Op: "open", Path: "policy.yaml", Err: fs.ErrPermission}, true},
		"the content is wrong":    {errors.New("policy.yaml:3: wrong"), false},
		"the file is gone":        {&fs.PathError{Op: "open", Path: "policy.yaml", Err: fs.ErrNotExist}, false},
		"several reasons at once": {errors.Join(errors.New("policy.yaml:3: wrong"), noDescriptor), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const failures = 5
			var fails, calls, looks atomic.Int64
			var log logs.Text
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			s := start(t, func(c *Config) {
				c.ReloadInterval, c.Logger = time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
				c.Reload = []Reloader{{Name: "figures", Files: func() []string { looks.Add(1); return []string{file} }, Reload: func() error {
					calls.Add(1)
					if fails.Add(1) <= failures {
						return test.err
					}
					return nil
				}}}
			})
			if err := s.Reload(); !errors.Is(err, test.err) {
				t.Errorf("Reload gives %v, want %v", err, test.err)
			}
			if test.again {
				await(t, "another try that succeeds", func() bool { return calls.Load() > failures })
				await(t, "a line that says so", func() bool { return strings.Contains(log.String(), "the figures was read again") })
			} else {
				from := looks.Load()
				await(t, "more looks", func() bool { return looks.Load() > from+10 })
				if n := calls.Load(); n != 1 {
					t.Errorf("it was read %d times, want once", n)
				}
			}
			if n := strings.Count(log.String(), "keeping the old figures"); n != 1 {
				t.Errorf("the log says %d times that the old content stays:\n%s", n, log.String())
			}
		})
	}
}

// The audit log that cannot be opened again goes on in its old file, says so, and is opened
// by itself once it can be.
func TestAnAuditLogThatCannotBeOpenedIsTriedAgain(t *testing.T) {
	t.Parallel()
	var log logs.Text
	dir := t.TempDir()
	file := filepath.Join(dir, "audit.log")
	s := start(t, func(c *Config) {
		c.AuditLog, c.ReloadInterval, c.Logger = file, time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
	})
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil { // which stands for a file that cannot be opened
		t.Fatal(err)
	}
	if err := s.Reload(); err == nil {
		t.Error("a directory is opened as the audit log")
	}
	s.audit.Operated("before", false)
	if text, err := os.ReadFile(file + ".1"); err != nil || !strings.Contains(string(text), `"client":"before"`) {
		t.Errorf("the old file has %q, %v", text, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	await(t, "the audit log to be opened again", func() bool {
		_, err := os.Stat(file)
		return err == nil
	})
	await(t, "the end of the reload", func() bool { // it is opened before it is used
		s.audit.Operated("after", false)
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), `"client":"after"`)
	})
	if n := strings.Count(log.String(), "the audit log goes on in its old file"); n != 1 {
		t.Errorf("the log says so %d times:\n%s", n, log.String())
	}
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * mqtttest.Deadline); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", 2*mqtttest.Deadline, what)
		}
	}
}
