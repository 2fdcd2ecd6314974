package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// grown is a data directory that journaltest.Grow has filled, as a kill and as a stop leave
// it; and the rows.
func grown(t testing.TB) (killed, stopped tree, rows map[string]string) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	j := mustOpen(t, Options{FS: fs})
	rows = journaltest.Grow(t, func(key, value string) { putAndWait(j, key, value) }, j.Flush)
	killed = journaltest.ReadTree(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	mustClose(t, j)
	stopped = journaltest.ReadTree(t, fs)
	return killed, stopped, rows
}

// tree is the files of a data directory by name.
type tree = journaltest.Tree

// openTree opens what a tree holds and returns its rows, or what opening or reading
// said. It does not say what is wrong twice.
func openTree(t testing.TB, files tree) (rows map[string]string, err error) {
	t.Helper()
	j, err := Open(Options{Dir: "data", FS: files.Plant(t), Logger: slog.New(slog.DiscardHandler), Fatal: func(error) {}})
	if err != nil {
		return nil, err
	}
	defer j.Close()
	rows = map[string]string{}
	err = j.Iterate([]byte("k"), []byte("l"), func(k, v []byte) bool {
		rows[string(k)] = string(v)
		return true
	})
	return rows, err
}

func sameRows(got, want map[string]string) bool {
	if len(got) != len(want) {
		return false
	}
	for k, v := range want {
		if got[k] != v {
			return false
		}
	}
	return true
}

// Whatever bit is flipped: either it is said, or every acknowledged row is
// there as it was.
func TestFlippedBitsAreNeverServed(t *testing.T) {
	t.Parallel()
	killed, stopped, rows := grown(t)
	for name, files := range map[string]tree{"killed": killed, "stopped": stopped} {
		if got, err := openTree(t, files); err != nil || !sameRows(got, rows) {
			t.Fatalf("%s: %d rows of %d, %v", name, len(got), len(rows), err)
		}
		for file, content := range files {
			t.Run(name+"/"+file, func(t *testing.T) {
				t.Parallel()
				flipBits(t, files, file, content, rows)
			})
		}
	}
}

// A manifest that was cut, or in which anything is wrong, wherever: either the log has all
// that the database of an earlier moment lacks, or the start is refused.
func TestManifestsThatEndEarly(t *testing.T) {
	t.Parallel()
	killed, stopped, rows := grown(t)
	merged, mergedRows := mergedTables(t)
	copied, copiedRows := checkpointed(t, false)
	idle, idleRows := checkpointed(t, true)
	for name, c := range map[string]struct {
		files tree
		rows  map[string]string
	}{"killed": {killed, rows}, "stopped": {stopped, rows}, "merged": {merged, mergedRows}, "copied": {copied, copiedRows}, "copied when idle": {idle, idleRows}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := openTree(t, c.files); err != nil || !sameRows(got, c.rows) {
				t.Fatalf("as it was: %d rows of %d, %v", len(got), len(c.rows), err)
			}
			manifest := ""
			for file := range c.files {
				if strings.HasPrefix(file, "MANIFEST") && file > manifest {
					manifest = file
				}
			}
			was := c.files[manifest]
			whole, refused := 0, 0
			for at := 0; at < len(was); at += 7 * journaltest.Stride() {
				for what, content := range map[string][]byte{
					"cut":     was[:at],
					"flipped": append(bytes.Clone(was[:at]), append([]byte{was[at] ^ 1<<(at%8)}, was[at+1:]...)...),
					"cleared": append(bytes.Clone(was[:at]), append(make([]byte, min(20, len(was)-at)), was[min(at+20, len(was)):]...)...),
				} {
					switch got, err := openTree(t, c.files.But(manifest, content)); {
					case errors.Is(err, ErrDamaged):
						refused++
					case err != nil:
						t.Errorf("%s at byte %d of %d: %v, want ErrDamaged", what, at, len(was), err)
					case !sameRows(got, c.rows):
						t.Errorf("%s at byte %d of %d: %d of %d rows are served", what, at, len(was), len(got), len(c.rows))
					default:
						whole++
					}
				}
			}
			t.Logf("of %d manifests, %d were refused, and with %d nothing was missing", whole+refused, refused, whole)
		})
	}
}

// mergedTables is a directory whose tables have been merged, and whose log was trimmed.
func mergedTables(t testing.TB) (files tree, rows map[string]string) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	j := mustOpen(t, Options{FS: fs, SegmentBytes: 1000})
	rows = map[string]string{}
	for round := range 6 {
		for n := range 30 {
			key, value := fmt.Sprintf("k|%04d", n*(round+1)), fmt.Sprint(round, n)
			putAndWait(j, key, value)
			rows[key] = value
		}
		if err := j.Flush(); err != nil {
			t.Fatal(err)
		}
		if round == 2 || round == 4 {
			if err := j.db.Compact(t.Context(), []byte("k"), []byte("l"), false); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.TrimLog(); err != nil {
			t.Fatal(err)
		}
	}
	putAndWait(j, "k|last", "in the log")
	rows["k|last"] = "in the log"
	files = journaltest.ReadTree(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	mustClose(t, j)
	return files, rows
}

// checkpointed is a checkpoint on which no journal was opened yet: its log has no batches.
// idle: it is of a journal that was opened again and had no batch since.
func checkpointed(t testing.TB, idle bool) (files tree, rows map[string]string) {
	t.Helper()
	fs := vfs.NewMem()
	j := mustOpen(t, Options{FS: fs, Dir: "from"})
	for n := range 100 {
		putAndWait(j, fmt.Sprintf("k|%04d", n), "v")
		if n%30 == 0 {
			if err := j.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if idle {
		mustClose(t, j)
		j = mustOpen(t, Options{FS: fs, Dir: "from"})
	}
	if err := j.Checkpoint("data", false); err != nil {
		t.Fatal(err)
	}
	rows = content(t, j)
	mustClose(t, j)
	return journaltest.ReadTree(t, fs), rows
}

// allFlips is how many bits of each file are flipped, one at a time; of the first
// and the last bytes all are.
const allFlips = 24

func flipBits(t *testing.T, files tree, file string, content []byte, rows map[string]string) {
	bits := len(written(content)) * 8
	if bits == 0 {
		return
	}
	rng, flips := rand.New(rand.NewPCG(uint64(bits), 7)), journaltest.Some(allFlips)
	where := make([]int, 0, flips)
	for i := range min(bits, flips) {
		switch {
		case bits <= flips || i < flips/6:
			where = append(where, i)
		case i < flips/3:
			where = append(where, bits-1-(i-flips/6))
		default:
			where = append(where, rng.IntN(bits))
		}
	}
	for _, bit := range where {
		damaged := tree{}
		for name, c := range files {
			damaged[name] = c
		}
		broken := append([]byte(nil), content...)
		broken[bit/8] ^= 1 << (bit % 8)
		damaged[file] = broken
		got, err := openTree(t, damaged)
		if err == nil && !sameRows(got, rows) {
			t.Errorf("bit %d of byte %d of %d: %d of %d rows, and nothing was said", bit%8, bit/8, len(content), len(got), len(rows))
		}
		_, isLog := wal.ParseSegmentName(file)
		if (isLog || strings.HasPrefix(file, "MANIFEST")) && err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("bit %d of byte %d: %v, want ErrDamaged", bit%8, bit/8, err)
		}
	}
}

// written is a file without the zeros that a log has ahead of it.
func written(content []byte) []byte { return bytes.TrimRight(content, "\x00") }

// The end of a log that a crash cut off is no damage, wherever it was cut.
func TestTornEndIsForgiven(t *testing.T) {
	t.Parallel()
	killed, _, rows := grown(t)
	log := lastLog(t, killed)
	content := written(killed[log])
	for cut := len(content); cut >= 0; cut -= max(1, (len(content)-cut)/3) {
		got, err := openTree(t, killed.But(log, withRoom(content[:cut])))
		if err != nil {
			t.Fatalf("cut at %d of %d: %v", cut, len(content), err)
		}
		for k := range got {
			if _, was := rows[k]; !was {
				t.Errorf("cut at %d: row %q was never written", cut, k)
			}
		}
		// Old content may follow, of a log whose file was used again.
		old := append(bytes.Clone(content[:cut]), strings.Repeat("\x00\xff", 3000)...)
		if _, err := openTree(t, killed.But(log, withRoom(old))); err != nil {
			t.Fatalf("cut at %d of %d, with something else behind: %v", cut, len(content), err)
		}
	}
}

// withRoom is what a segment holds, with the room that is always ahead.
func withRoom(content []byte) []byte {
	return append(bytes.Clone(content), make([]byte, wal.RoomAhead)...)
}

// frameEnds are the places in a segment where its sound frames end.
func frameEnds(content []byte) (ends []int) {
	for p := 0; ; ends = append(ends, p) {
		f, ok := wal.Mask(0).ReadFrame(content, p)
		if !ok {
			return ends
		}
		p = f.End
	}
}

func lastLog(t testing.TB, files tree) (last string) {
	t.Helper()
	for name := range files {
		if _, isLog := wal.ParseSegmentName(name); isLog && name > last {
			last = name
		}
	}
	if last == "" {
		t.Fatal("there is no log")
	}
	return last
}

// usedLog is the newest segment that has batches, of a directory as a stop leaves it, which
// begins another segment.
func usedLog(t testing.TB, stopped tree) string {
	t.Helper()
	return lastLog(t, stopped.Without(lastLog(t, stopped)))
}

// What is in tables already does not matter any more where it is in the log.
func TestDamageInWhatIsNotNeeded(t *testing.T) {
	t.Parallel()
	killed, _, rows := grown(t)
	log := lastLog(t, killed)
	content := bytes.Clone(killed[log])
	content[100] ^= 1 // the first batch
	killed[log] = content
	killed["0000000000000000.journal"] = content
	if got, err := openTree(t, killed); err != nil || !sameRows(got, rows) {
		t.Errorf("%d of %d rows, %v", len(got), len(rows), err)
	}
}

func TestDamageIsNamed(t *testing.T) {
	t.Parallel()
	killed, _, _ := grown(t)
	log := lastLog(t, killed)
	content := bytes.Clone(killed[log])
	ends := frameEnds(content)
	at := ends[len(ends)-2] - 5 // in the last frame but one
	content[at] ^= 1 << 3
	killed[log] = content
	_, err := openTree(t, killed)
	for _, part := range []string{log, fmt.Sprintf("at byte %d", ends[len(ends)-3]), "restore a backup", "data"} {
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), part) {
			t.Errorf("Open: %v, want %q in it", err, part)
		}
	}
}

// A stop says that all is on the disk. So whatever is wrong with the last batch after
// one is no torn end.
func TestDamageToTheLastBatchAfterAStop(t *testing.T) {
	t.Parallel()
	_, stopped, rows := grown(t)
	log := usedLog(t, stopped)
	ends := frameEnds(stopped[log])
	end := ends[len(ends)-2] // of the batch: the last frame ends the segment
	for _, size := range []int{2, 20, 512} {
		content := bytes.Clone(stopped[log])
		for i := range content[end-size : end] {
			content[end-size+i] ^= 0xff
		}
		if got, err := openTree(t, stopped.But(log, content)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d bytes: %d rows of %d, %v", size, len(got), len(rows), err)
		}
	}
}

// What is refused is left as it is, for a person to look at.
func TestDamageIsLeftAlone(t *testing.T) {
	t.Parallel()
	files, _ := severalSegments(t)
	names := segmentsOf(t, files.Plant(t))
	for _, name := range names[:len(names)-1] { // the end of the last one may be torn
		content := bytes.Clone(files[name])
		content[len(written(content))/2] ^= 4
		damaged := files.But(name, content)
		fs := damaged.Plant(t)
		if _, err := Open(Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler)}); !errors.Is(err, ErrDamaged) {
			t.Fatalf("Open: %v", err)
		}
		if after := journaltest.ReadTree(t, fs); !maps.EqualFunc(after, damaged, bytes.Equal) {
			t.Errorf("the damage to %s has changed more: %d files, and %d before", name, len(after), len(damaged))
		}
	}
}
