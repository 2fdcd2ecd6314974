package rows

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

const (
	rememberedMessages = 500_000
	rememberedTogether = 24  // messages of a transaction
	rememberedHours    = 168 // for which they are remembered
	rememberedKeys     = 1024
)

// name is by what a message is remembered.
func name(i int) (key, id []byte) {
	return fmt.Appendf(nil, "counters/%06d", i%rememberedKeys), fmt.Appendf(nil, "event:9:device/%04d%08x-7f1d-4a57-9e2b-%012x", i%5000, uint32(i)*2654435761, i)
}

// hashOf takes the place of a name. With 16 bytes, messages of which one would be taken for another
// are not to be expected; with 8 bytes, among a thousand million messages one in 18 thousand million
// new ones would be lost.
func hashOf(i int) []byte {
	key, id := name(i)
	h := sha256.Sum256(append(append(key, 0), id...))
	return h[:16]
}

// BenchmarkRemembered compares ways to remember messages on the disk, as the path of transactions
// does, with a digest of 9 bytes: by key and message ID, as the server does; by a hash of them; and
// by a hash in a segment for each hour, which needs no index of deadlines, but each segment is to be
// asked. It reports bytes on the disk, the time to write a message, until it is in tables, and the
// times to look for a new message and for one that is known.
func BenchmarkRemembered(b *testing.B) {
	hourOf := func(i int) int64 { return int64(i) * rememberedHours / rememberedMessages }
	segment := func(hour int64, i int) []byte {
		return append(binary.BigEndian.AppendUint64([]byte("h|"), uint64(hour)), hashOf(i)...)
	}
	named := func(i int) []byte {
		key, id := name(i)
		return AppendMemoRow(nil, key, id)
	}
	hashed := func(i int) []byte { return AppendMemoRow(nil, nil, hashOf(i)) }
	one := func(row func(int) []byte) func(i int) [][]byte {
		return func(i int) [][]byte { return [][]byte{row(i)} }
	}
	for _, way := range []struct {
		name  string
		row   func(i int) []byte
		index bool
		ask   func(i int) [][]byte
	}{
		{"names", named, true, one(named)},
		{"hashes", hashed, true, one(hashed)},
		{"hashes-by-the-hour", func(i int) []byte { return segment(hourOf(i), i) }, false, func(i int) (rows [][]byte) {
			for hour := range int64(rememberedHours) {
				rows = append(rows, segment(hour, i))
			}
			return rows
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() { // what is measured comes below, and counts by itself
			}
			b.ReportMetric(0, "ns/op")
			dir := b.TempDir()
			j, err := journal.Open(journal.Options{Dir: dir, Fatal: func(err error) { b.Error(err) }})
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			began, memoRows := time.Now(), make([][]byte, rememberedTogether)
			for i := 0; i < rememberedMessages; i += rememberedTogether {
				deadline := int64(run) + hourOf(i)*3_600_000
				version := hlc.Timestamp{Wall: uint64(deadline), Counter: uint64(i), Node: "holdfast"}
				a := j.Begin()
				for n := range memoRows {
					memoRows[n] = way.row(i + n)
					m := Memo{What: &statestore.Memo{Version: version, Done: true, Context: make([]byte, 9), DeadlineMs: deadline}, DiskMs: deadline, Shared: true}
					WriteMemo(a, memoRows[n], &m, 0, run)
				}
				if way.index {
					WriteSharedIndex(a, deadline, version, memoRows)
				}
				a.End(nil)
			}
			if err := j.Flush(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(time.Since(began).Nanoseconds())/rememberedMessages, "ns/write")
			b.ReportMetric(float64(tablesIn(b, dir))/rememberedMessages, "disk-B/message")
			random := rand.New(rand.NewPCG(1, 2))
			for what, first := range map[string]int{"known": 0, "new": 10 * rememberedMessages} {
				const asked = 10_000
				began, found := time.Now(), 0
				for range asked {
					if err := j.ProbeAll(way.ask(first+random.IntN(rememberedMessages)), func(int, []byte) { found++ }); err != nil {
						b.Fatal(err)
					}
				}
				if found != asked && what == "known" || found != 0 && what == "new" {
					b.Fatalf("%d of %d %s messages were found", found, asked, what)
				}
				b.ReportMetric(float64(time.Since(began).Nanoseconds())/asked, "ns/"+what)
			}
		})
	}
}

// tablesIn is how many bytes the tables in a directory have.
func tablesIn(b *testing.B, dir string) (bytes int64) {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".sst" {
			info, err := d.Info()
			if err != nil {
				return err
			}
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return bytes
}
