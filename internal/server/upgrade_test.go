package server

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
)

// fixtures are data directories of each format that a released or built program has had,
// as that program left them when it was killed. Each has the keys greeting, session/7 and
// big, a retained message on plant/7/name, and the session of client "away", for which a
// message on plant/7/state waits. A new format gets a new fixture, and the others stay.
var fixtures = []string{"format-1", "format-2"}

// withMessages are of the last of these formats, with two remembered messages: the program of the
// first did not count them on disk, and that of the second had a row of the index for each.
var withMessages = []string{"remembered", "counted"}

// A server opens the directories of all earlier programs, with everything in them.
func TestOlderDataOpens(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Concat(fixtures, withMessages) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := unpack(t, filepath.Join("testdata", name+".tar.gz"))
			report, err := Check(Config{DataDir: dir}, nil)
			if err != nil {
				t.Fatal(err)
			}
			want, messages := "3 keys (3029 bytes), 1 sessions, 1 subscriptions, 1 queued messages, 1 retained messages, 0 wills", int64(0)
			if slices.Contains(withMessages, name) {
				want, messages = want+", 2 remembered messages", 2
			}
			if report.String() != want || !report.Sound() {
				t.Errorf("check says %s (%q), want %s", report, report.Problems, want)
			}
			for range 2 { // the second time it is of the newest format
				s := startIn(t, dir)
				c, err := client.Dial(t.Context(), s.Addrs()[0].String())
				if err != nil {
					t.Fatal(err)
				}
				value, found, err := c.Get(t.Context(), "greeting")
				if err != nil || !found || string(value.Bytes) != "hello" {
					t.Errorf("greeting is %q, %v, %v", value.Bytes, found, err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if s.Keys() != 3 {
					t.Errorf("%d keys, want 3", s.Keys())
				}
				if got := s.engine.Stats().Remembered; got.Messages != messages || got.Bytes != messages*(2*len64("jobs", "job-7")+64)+messages/2*len64("digest") {
					t.Errorf("%+v are remembered, want %d messages", got, messages)
				}
				reader := mqtttest.Connect(t, s.Addrs()[0].String())
				reader.Subscribe("plant/7/name", 0)
				if m := reader.Receive(); m.Payload != "seven" {
					t.Errorf("the retained message is %+v", m)
				}
				reader.Disconnect()
				stop(t, s)
			}
			s := startIn(t, dir)
			away := mqtttest.Connect(t, s.Addrs()[0].String(), mqtttest.Persistent("away"))
			if m := away.Receive(); m.Topic != "plant/7/state" || m.Payload != "waiting" {
				t.Errorf("the client that was away gets %+v", m)
			}
		})
	}
}

// len64 is how many bytes texts have together.
func len64(texts ...string) int64 { return int64(len(strings.Join(texts, ""))) }

// A server refuses the directory of a newer program, and says what would help.
func TestNewerDataIsRefused(t *testing.T) {
	t.Parallel()
	dir := unpack(t, filepath.Join("testdata", fixtures[len(fixtures)-1]+".tar.gz"))
	stop(t, startIn(t, dir))
	next := len(fixtures) + 1
	db, err := pebble.Open(dir, &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: pebblefile.Silent{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set([]byte("m|format"), fmt.Appendf(nil, "holdfast %d", next), pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, dir
	_, err = Start(cfg)
	want := fmt.Sprintf("%s has format %d, this program knows formats up to %d; use a newer version", dir, next, next-1)
	if !errors.Is(err, journal.ErrNewerFormat) || !strings.Contains(err.Error(), want) {
		t.Errorf("the start: %v, want %q", err, want)
	}
	if _, err := Check(Config{DataDir: dir}, nil); !errors.Is(err, journal.ErrNewerFormat) {
		t.Errorf("the check: %v", err)
	}
}

// unpack unpacks a fixture into a directory of the test's own.
func unpack(t *testing.T, archive string) (dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
