package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
)

// Nodes of other releases begin the connection for a snapshot with the bytes of the file. Package snapshot has a test
// of what follows.
func TestFormOfTheSnapshotsMagic(t *testing.T) {
	t.Parallel()
	goldenfile.Exchanged("take connections that begin with either, and begin them with the former one until the cluster has a format level, which you raise (internal/replica/members/level.go), that says that all nodes know the other").
		Check(t, "magic of a snapshot", []byte(snapshotMagic))
}

// Format level 1 stands for these formats. A program that writes another one, which an earlier program cannot read,
// raises members.Level, and writes the former one as long as the cluster's level is lower: a node that gets
// a snapshot, or is started with the former program again, reads what other nodes and it have written.
func TestFormatLevelSaysWhatIsWritten(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a")
	nodes := c.start("a")
	l := c.leader(nodes)
	if !l.put("k|1", "v") {
		t.Fatal("a node alone has lost its office")
	}
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	if s := nodes["a"].Status(); s.InForce != members.Lowest && s.InForce != members.Level {
		t.Errorf("the cluster has level %d", s.InForce)
	}
	nodes["a"].end()

	dir := c.dirs["a"]
	got := map[string]any{"lowest level": members.Lowest}
	desc, err := pebble.Peek(dir, vfs.Default)
	if err != nil {
		t.Fatal(err)
	}
	got["database"] = int(desc.FormatMajorVersion)
	lock, err := datadir.Acquire(vfs.Default, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	db, err := pebblefile.OpenReadOnly(vfs.Default, dir, lock, true)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows := func(key string) string {
		value, closer, err := db.Get([]byte(key))
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		defer closer.Close()
		return string(value)
	}
	got["rows"] = rows("m|format")
	got["row of the members"] = int(rows("m|raft")[8])
	node, err := os.ReadFile(filepath.Join(dir, Dir, "node"))
	var identity struct{ Format int }
	if err == nil {
		err = json.Unmarshal(node, &identity)
	}
	if err != nil {
		t.Fatal(err)
	}
	got["node"] = identity.Format
	log, err := os.ReadFile(filepath.Join(dir, Dir, "raft", "raft-log"))
	if err != nil {
		t.Fatal(err)
	}
	got["log"], _, _ = strings.Cut(string(log), "\n")
	for what, want := range map[string]any{"lowest level": 1, "database": int(pebble.FormatValueSeparation), "rows": "holdfast 2", "row of the members": 0, "node": 2, "log": "holdfast raft 1"} {
		if got[what] != want {
			t.Errorf("%s: format %v, and level 1 stands for %v: see level.go of package members", what, got[what], want)
		}
	}
}
