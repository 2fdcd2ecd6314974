package journal

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
)

func TestParseDurability(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want Durability
		says string // empty: text again
	}{
		{"sync", Sync, ""},
		{"none", NoSync, ""},
		{"interval=1000", SyncEvery(time.Second), ""},
		{"interval=10", SyncEvery(10 * time.Millisecond), ""},
		{"interval=1.5s", SyncEvery(1500 * time.Millisecond), "interval=1500"},
	} {
		got, err := ParseDurability(c.text)
		if err != nil || got != c.want {
			t.Errorf("%q: %v, %v", c.text, got, err)
		}
		if want := c.says; got.String() != c.text && got.String() != want {
			t.Errorf("%q is printed as %q", c.text, got)
		}
	}
	for _, text := range []string{"", "Sync", "interval", "interval=", "interval=9", "interval=-5", "interval=60001", "interval=010", "interval=0100", "interval=010s", "interval=15.5", "interval=0x10", "interval=2h", "interval=x", "everysec"} {
		if d, err := ParseDurability(text); err == nil || !strings.Contains(err.Error(), "interval=1000") {
			t.Errorf("%q: %v, %v; want an error with an example", text, d, err)
		}
	}
}

// Without Sync a waiter is called although the disk has not answered.
func TestWithoutSyncWaitersDoNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	for _, d := range []Durability{NoSync, SyncEvery(MaxSyncInterval)} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			disk := journaltest.NewDisk(vfs.NewMem())
			j := mustOpen(t, Options{FS: disk, Durability: d})
			disk.Hold()
			for i := range 100 {
				putAndWait(j, fmt.Sprint("k", i), "v")
			}
			disk.Release(nil)
			mustClose(t, j)
		})
	}
}

// What a crash takes away is the end, back to the last fsync; a clean stop takes
// nothing away.
func TestWhatACrashTakesWithoutSync(t *testing.T) {
	t.Parallel()
	for _, d := range []Durability{NoSync, SyncEvery(MaxSyncInterval)} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewCrashableMem()
			j := mustOpen(t, Options{FS: fs, Durability: d})
			putAndWait(j, "k1", "synced")
			if !j.syncNow() { // what the interval does
				t.Fatal("the sync failed")
			}
			putAndWait(j, "k2", "not synced")
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			mustClose(t, j)
			stopped := fs.CrashClone(vfs.CrashCloneCfg{})

			for name, c := range map[string]struct {
				fs   *vfs.MemFS
				want string
			}{"crash": {crashed, "map[k1:synced]"}, "stop": {stopped, "map[k1:synced k2:not synced]"}} {
				j := mustOpen(t, Options{FS: c.fs})
				if got := fmt.Sprint(content(t, j)); got != c.want {
					t.Errorf("after a %s: %s, want %s", name, got, c.want)
				}
				mustClose(t, j)
			}
		})
	}
}

// The interval asks for an fsync by itself, and a disk that fails or hangs is
// noticed there too.
func TestTheIntervalFailsLikeACommit(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]error{"fails": errors.New("input/output error"), "hangs": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := journaltest.NewDisk(vfs.NewMem())
			fatal := make(chan error, 10)
			o := Options{FS: disk, Durability: SyncEvery(MinSyncInterval), Fatal: func(err error) { fatal <- err }}
			want := "has not reached the disk"
			if release != nil {
				want = release.Error()
			} else {
				o.CommitTimeout = 50 * time.Millisecond
			}
			mustCreate(t, disk) // for which a busy machine may take longer
			j := mustOpen(t, o)
			disk.Hold()
			put(j, "k1", "v", nil)
			if release != nil {
				disk.Release(release)
			}
			if err := <-fatal; !strings.Contains(err.Error(), want) {
				t.Errorf("Fatal(%v), want %q", err, want)
			}
			disk.Release(nil)
		})
	}
}
