package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFindings(t *testing.T) {
	t.Parallel()
	const day, gib = 24 * time.Hour, 1 << 30
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	certificate := func(from, until time.Duration) Finding {
		return Certificate("server.crt", now.Add(from), now.Add(until), now)
	}
	for _, test := range []struct {
		name    string
		finding Finding
		level   Level
		says    string // in what was found, or in what to change
	}{
		{"no limit of descriptors", Descriptors(0, 0, 100_000), OK, "does not limit"},
		{"enough descriptors", Descriptors(200_000, 150_000, 100_000), OK, "100000 connections"},
		{"one connection short", Descriptors(200_000, 99_999, 100_000), Advice, "ulimit -n"},
		{"an unknown clock", Clock(Synchronization{}, 0, time.Minute), OK, "not known"},
		{"a synchronized clock", Clock(Synchronization{Known: true, Synced: true, Error: 2 * time.Millisecond}, 0, time.Minute), OK, "within 2ms"},
		{"a free-running clock", Clock(Synchronization{Known: true}, 0, time.Minute), Advice, "chrony"},
		{"versions ahead by the skew", Clock(Synchronization{Known: true, Synced: true}, time.Minute, time.Minute), OK, "1m0s ahead"},
		{"versions ahead by more", Clock(Synchronization{Known: true, Synced: true}, time.Minute+time.Millisecond, time.Minute), Problem, "set it right"},
		{"a node whose clock agrees", NodeClock(2, true, false, -2*time.Millisecond, []string{"b", "c"}), OK, "agrees with that of b, c, to within 2ms"},
		{"a node whose clock does not", NodeClock(2, true, true, 2*time.Hour, []string{"b", "c"}), Problem, "set it right: until then"},
		{"two nodes whose clocks differ", NodeClock(1, false, false, 0, nil), Problem, "the one that is wrong"},
		{"a node that has heard of no other", NodeClock(0, false, false, 0, nil), OK, "no other node"},
		{"room", Disk("ext4", 10*gib, gib), OK, "10.0 GiB"},
		{"little room", Disk("ext4", 4*gib-1, gib), Advice, "make room soon"},
		{"no room", Disk("", gib-1, gib), Problem, "make room"},
		{"a disk in memory", Disk("tmpfs", 10*gib, gib), Problem, "lost with the machine"},
		{"no room in memory", Disk("tmpfs", gib-1, gib), Problem, "make room; and choose"},
		{"a disk elsewhere", Disk("nfs", 10*gib, gib), Advice, "local disk"},
		{"a container's own layer", Disk("overlay", 10*gib, gib), Advice, "mount a volume"},
		{"no fsync yet", Fsync(0, 0, 0, true), OK, "no write"},
		{"a good disk", Fsync(200*time.Microsecond, 3*time.Millisecond, 50, true), OK, "200µs"},
		{"a slow disk", Fsync(20*time.Millisecond, 30*time.Millisecond, 50, true), Advice, "50 writes a second"},
		{"a disk that stalls", Fsync(time.Millisecond, time.Second, 50, true), Advice, "stalls"},
		{"a disk that does not sync", Fsync(2*time.Microsecond, 3*time.Microsecond, 50, true), Advice, "power cut"},
		{"a server that does not sync", Fsync(time.Millisecond, time.Millisecond, 50, false), Advice, "--durability sync"},
		{"unknown memory", Memory(0, 0, ""), Advice, "--max-memory"},
		{"memory", Memory(gib, 2*gib, "--max-memory"), OK, "1.0 GiB"},
		{"more than there is", Memory(2*gib+1, 2*gib, "--max-memory"), Problem, "lower --max-memory"},
		{"little memory", Memory(256<<20-1, gib, "--max-memory"), Advice, "give it"},
		{"a certificate", certificate(-day, 31*day), OK, "2026-12-24"},
		{"to be renewed", certificate(-365*day, 30*day-time.Second), Advice, "renew it"},
		{"about to expire", certificate(-365*day, 3*day-time.Second), Problem, "renew it now"},
		{"of an hour", certificate(-30*time.Minute, 30*time.Minute), OK, "valid until"},
		{"of an hour, of which little is left", certificate(-50*time.Minute, 10*time.Minute), Advice, "renew it"},
		{"expired", certificate(-2*day, 0), Problem, "has expired"},
		{"of tomorrow", certificate(day, 2*day), Problem, "clock right"},
		{"a bound with room", Bound("keys", 799, 1000), OK, "79 % of 1000"},
		{"a bound that fills up", Bound("keys", 800, 1000), Advice, "raise it in time"},
		{"a bound that is reached", Bound("keys", 1000, 1000), Problem, "is refused"},
		{"a server at work", Serving(nil), OK, "serves clients"},
		{"a server that starts", Serving([]string{"recovering"}), Problem, "recovering"},
		{"a bridge", Bridge("plant", true, "none"), OK, "plant is connected"},
		{"a bridge to itself", Bridge("plant", false, "itself"), Problem, "correct the bridge's url"},
		{"a bridge that is refused", Bridge("plant", false, "refused"), Problem, "reason code"},
		{"a bridge that reaches nothing", Bridge("plant", false, "failed"), Problem, "does the other broker run"},
		{"a bridge that has not tried yet", Bridge("plant", false, "none"), Problem, "does the other broker run"},
		{"an error", Refused("listeners", errors.New("address in use")), Problem, "address in use"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := test.finding
			if f.Level != test.level || !strings.Contains(f.Found+"\n"+f.Change, test.says) {
				t.Errorf("%+v, want %s with %q", f, test.level, test.says)
			}
			if (f.Change == "") != (f.Level == OK) {
				t.Errorf("%s, and what to change is %q", f.Level, f.Change)
			}
		})
	}
}

func TestWorst(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		all  []Finding
		want Level
	}{
		{nil, OK},
		{[]Finding{{Level: Advice}, {Level: OK}}, Advice},
		{[]Finding{{Level: Problem}, {Level: Advice}}, Problem},
	} {
		if got := Worst(test.all); got != test.want {
			t.Errorf("%v: %s, want %s", test.all, got, test.want)
		}
	}
}

// The probe measures on a real disk, and leaves nothing behind.
func TestProbeFsync(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	median, longest, count, err := ProbeFsync(dir, time.Minute)
	if err != nil || count != fsyncs || median <= 0 || longest < median {
		t.Errorf("median %v, longest %v of %d, %v", median, longest, count, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, _, count, err := ProbeFsync(dir, 0); err != nil || count != 1 {
		t.Errorf("without time: %d, %v", count, err)
	}
	if _, _, _, err := ProbeFsync(filepath.Join(dir, "none"), time.Minute); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}
}
