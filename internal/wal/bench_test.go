package wal

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// BenchmarkCommit: a write and an fsync for each batch, through many segments, each of
// which is trimmed as soon as the next one has begun.
func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{100, 5_000, 80_000} { // rows of a SET, of 50 and of 800
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			dir := b.TempDir()
			if err := Create(vfs.Default, dir, 1); err != nil {
				b.Fatal(err)
			}
			l, err := Read(Options{FS: vfs.Default, Dir: dir, Sync: true, Long: func() {}, NoRoom: func() bool { return false }}, State{Logged: true})
			if err == nil {
				err = l.Begin()
			}
			if err != nil {
				b.Fatal(err)
			}
			rows := make([]byte, size)
			for b.Loop() {
				number, err := l.Commit(rows)
				if err == nil && len(l.segments) > 1 {
					err = l.Trim(number - 1)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
