package crashtest

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// What concurrent clients of the state store see, over as many kills as fit,
// must be what one request after the other would have done.
func TestLinearizableOverKills(t *testing.T) {
	t.Parallel()
	mustHold(t, runFor(t, Options{For: duration(15 * time.Second), Store: true, Enough: func(s *Summary) bool {
		return s.Rounds > 0 && s.Store.Answered > 0 && s.Store.Txns > 0 && s.Store.Notified > 0 && s.Store.Locks > 0 && s.Store.Archived > 0 &&
			s.Processors.Commits > 0 && s.Processors.Done > 0 && s.Transfers.Done > 0
	}}))
}

// What is acknowledged is delivered, in order, and at QoS 2 once; sessions,
// subscriptions, retained messages, keys and locks are what they were.
func TestNothingIsLostOverKills(t *testing.T) {
	t.Parallel()
	mustHold(t, runFor(t, Options{For: duration(30 * time.Second), Store: true, Sessions: true, Messages: true, Enough: func(s *Summary) bool {
		return s.Rounds > 0 && s.Messages.Delivered > 0 && s.Messages.Retained > 0 && s.Sessions.Resumed > 0 && s.Store.Answered > 0
	}}))
}

// The harness itself: a disk that forgets what it was told is found out by every part.
//
// What a run loses is up to chance, and a run ends when its actors wait in vain for what is
// gone. So there are up to five, until each part has noticed something.
func TestAnOldDiskIsNoticed(t *testing.T) {
	t.Parallel()
	missing := map[string]bool{"loss of messages": true, "archive/": true, `requests to "chapter`: true, `requests to "the keys of chapter`: true, "roamer": true, "processor": true}
	for run := 0; run < 5 && len(missing) > 0; run++ {
		s := runFor(t, Options{Rounds: 30, Store: true, Sessions: true, Messages: true, Patience: 2 * time.Second, Between: forgetful(t)})
		if !s.Failed() {
			t.Fatal("nothing was noticed")
		}
		if m := s.Messages; m.Lost+m.DuplicatesQoS2+m.SessionsLost > 0 {
			delete(missing, "loss of messages")
		}
		broken := strings.Join(s.Violations, "\n")
		for part := range missing {
			if strings.Contains(broken, part) {
				delete(missing, part)
			}
		}
	}
	for part := range missing {
		t.Errorf("none of the violations speaks of %q", part)
	}
}

// forgetful puts a copy of the data from some kills ago in its place at every seventh kill.
func forgetful(t *testing.T) func(dir string) {
	var copies []string
	return func(dir string) {
		data, old := filepath.Join(dir, "data"), filepath.Join(t.TempDir(), "data")
		// What a killed server leaves of its control socket is no data.
		if err := os.Remove(filepath.Join(data, "holdfast.sock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if err := os.CopyFS(old, os.DirFS(data)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if copies = append(copies, old); len(copies)%7 != 0 {
			return
		}
		if err := errors.Join(os.RemoveAll(data), os.Rename(copies[len(copies)-4], data)); err != nil {
			t.Error(err)
		}
	}
}

// The part for messages drives any broker.
func TestAnotherBroker(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/mosquitto"); err != nil {
			t.Skip("this test drives a broker that is not ours, and mosquitto is not installed (Debian: mosquitto)")
		}
	}
	s := runFor(t, Options{Program: harness.Mosquitto(path, 1), Rounds: 5, Messages: true})
	if s.Messages.Acknowledged == 0 || s.Messages.Delivered == 0 {
		t.Errorf("no actor has worked: %v", s)
	}
}

// The command prints a summary that a program can read.
func TestCommand(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "run", "./crash", "-binary", testserver.Binary(), "-rounds", "3", "-seed", "7", "-json", "-")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var s Summary
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if s.Broker != "holdfast" || s.Seed != 7 || s.Rounds != 3 || s.Failed() {
		t.Errorf("got %+v", s)
	}
}
