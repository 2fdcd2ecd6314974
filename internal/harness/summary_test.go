package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// result is the smallest whole summary.
type result struct {
	Summary
	Rounds int `json:"rounds"`
}

func (r *result) String() string { return r.Head() + ": " + r.Broken() + r.List() }

func TestReport(t *testing.T) {
	t.Parallel()
	good := &result{Summary{Broker: "holdfast", Seed: 7}, 3}
	bad := &result{Summary{Broker: "holdfast", Seed: 7, Violations: []string{"a key is gone"}}, 3}
	for _, test := range []struct {
		name    string
		r       Result
		failure error
		want    int
	}{
		{"no promise was broken", good, nil, 0},
		{"a promise was broken", bad, nil, 1},
		{"the run failed", nil, errors.New("no broker"), 2},
		{"the run failed after a while", bad, errors.New("no broker"), 2},
	} {
		file := filepath.Join(t.TempDir(), "summary.json")
		if got := Report("test", test.r, test.failure, file); got != test.want {
			t.Errorf("%s: status %d, want %d", test.name, got, test.want)
		}
		if test.r == nil {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s result
		if err := json.Unmarshal(text, &s); err != nil || s.Seed != 7 || s.Rounds != 3 {
			t.Errorf("%s: %s, %v", test.name, text, err)
		}
	}
	if got := Report("test", good, nil, filepath.Join(t.TempDir(), "no", "such", "directory")); got != 2 {
		t.Errorf("a file that cannot be written: status %d, want 2", got)
	}
}

// A summary shows so many violations as a person reads, and counts the rest.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	var s Summary
	for i := range shown {
		s.Violations = append(s.Violations, fmt.Sprint("violation ", i))
	}
	if got := s.List(); strings.Count(got, "BROKEN") != shown || strings.Contains(got, "more") {
		t.Errorf("at the bound: %s", got)
	}
	s.Violations = append(s.Violations, "one more")
	if got := s.List(); strings.Count(got, "BROKEN") != shown || !strings.HasSuffix(got, "… and 1 more") {
		t.Errorf("one above the bound: %s", got)
	}
}
