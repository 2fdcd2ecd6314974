package server

import (
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// What is salvaged has one of everything, and rows that make no sense are left out.
func TestSalvage(t *testing.T) {
	t.Parallel()
	fs := filled(t)
	j, err := journal.Open(journal.Options{Dir: "data", FS: fs, Logger: logger(Config{})})
	if err != nil {
		t.Fatal(err)
	}
	a := j.Begin()
	for _, row := range [][2]string{
		{"k|broken", "\x09"}, {"k|later", "\x01\x00\xff\xff\xff\xff\xff\xff\x01\x01\x01n"}, {"r|\x01km", "\x09"},
		{"x|\x00\x00\x00\x00\x00\x00\x00\x01\x01km", ""}, {"s|client", "\x01"}, {"t|topic", "\x02\x00"},
		{"p|12345678", "\x07"}, {"q|1234567812345678", "\x01\x80\x00\x0012345678"},
	} {
		a.Set([]byte(row[0]), []byte(row[1]))
	}
	a.End(nil)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := Salvage(Config{DataDir: "data", FS: fs}, "saved", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(filledWith, "5 keys (33 bytes)", "6 keys (38 bytes)", 1) // and the later one
	if got := report.String(); got != want {
		t.Errorf("got  %s\nwant %s\n%q", got, want, report.Problems)
	}
	for _, part := range []string{`key "broken"`, `remembered message "\x01km"`, `session with key "client"`, `retained message with key "topic"`, `message with key "12345678"`, `queued message`} {
		if !strings.Contains(strings.Join(report.Problems, "\n"), part) {
			t.Errorf("nothing is said of the %s: %q", part, report.Problems)
		}
	}
	if r, err := Check(Config{DataDir: "saved", FS: fs}, nil); err != nil || !r.Sound() {
		t.Errorf("the check of it: %v, %v", r, err)
	}
}
