package transfer

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// progressSuffix ends the name of the file that says how far an import has come.
const progressSuffix = ".progress"

// state is how far an import has come, and its ID, by which the server knows what it has published.
// Both are in a file while it runs: a number of lines, a blank, and the ID.
type state struct {
	path  string // empty: there is no file
	noun  string // of what is counted: line or entry
	done  int64
	id    string
	noted time.Time
}

// begin reads the file, or begins anew.
func (s *state) begin(resume bool) error {
	s.id = strings.ToLower(rand.Text())
	if !resume {
		return nil
	}
	if s.path == "" {
		return errors.New("--resume needs a file: standard input cannot be read again")
	}
	text, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: no import of this file was interrupted; begin without --resume", err)
	}
	if err != nil {
		return err
	}
	if n, err := fmt.Sscanf(string(text), "%d %s\n", &s.done, &s.id); n != 2 || err != nil || s.done < 0 || len(s.id) > 64 {
		return fmt.Errorf("%s: want how many lines have been imported, and the ID of the import; to import from the beginning, leave --resume out", s.path)
	}
	return nil
}

// noteEvery is how often the file is written.
const noteEvery = time.Second

// reached notes a line, in the file once in a while.
func (s *state) reached(line int64) error {
	s.done = line
	if time.Since(s.noted) < noteEvery {
		return nil
	}
	return s.note()
}

func (s *state) note() error {
	if s.path == "" {
		return nil
	}
	s.noted = time.Now()
	next := s.path + ".tmp"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%d %s\n", s.done, s.id), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.path)
}

// end notes how far the import has come if it has failed, and removes the file otherwise.
func (s *state) end(err error) error {
	if s.path == "" {
		return err
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%w (%s done; --resume goes on behind them)", err, countedEntries(s.done, s.noun)), s.note())
	}
	if err := os.Remove(s.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// countedEntries gives a number of lines or of entries.
func countedEntries(n int64, noun string) string {
	if noun == "entry" && n != 1 {
		return fmt.Sprintf("%d entries", n)
	}
	return output.Counted(n, noun)
}
