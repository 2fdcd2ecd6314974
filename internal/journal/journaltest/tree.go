package journaltest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Tree is the files of a data directory by name.
type Tree map[string][]byte

// ReadTree reads the directory "data".
func ReadTree(t testing.TB, fs vfs.FS) Tree {
	t.Helper()
	names, err := fs.List("data")
	if err != nil {
		t.Fatal(err)
	}
	files := Tree{}
	for _, name := range names {
		f, err := fs.Open("data/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if files[name], err = io.ReadAll(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return files
}

// Plant returns a file system with the files in the directory "data".
func (files Tree) Plant(t testing.TB) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("data", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		f, err := fs.Create("data/"+name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(bytes.Clone(content)); err != nil { // MemFS may overwrite what it is given
			t.Fatal(err)
		}
		f.Close()
	}
	return fs
}

// But is a tree with another content of one file.
func (files Tree) But(name string, content []byte) Tree {
	other := maps.Clone(files)
	other[name] = content
	return other
}

// Without is a tree without some of the files.
func (files Tree) Without(names ...string) Tree {
	left := maps.Clone(files)
	for _, name := range names {
		delete(left, name)
	}
	return left
}

// Row is what a batch that sets a row has in the log.
func Row(key, value string) []byte {
	rows := append([]byte{1}, byte(len(key)))
	rows = append(rows, key...)
	rows = binary.AppendUvarint(rows, uint64(len(value)))
	return append(rows, value...)
}

// ReadFile reads a file.
func ReadFile(fs vfs.FS, path string) ([]byte, error) { return content(fs, path) }

// Names are those of the files in the directory "data" for which want says true, in their
// order.
func Names(t testing.TB, fs vfs.FS, want func(name string) bool) (names []string) {
	t.Helper()
	all, err := fs.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if want(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Grow puts random rows until a data directory has tables, a manifest of several records,
// and a log with rows in several blocks and a last block of its own. It returns the rows.
// put waits until the row is durable; flush makes tables.
func Grow(t testing.TB, put func(key, value string), flush func() error) (rows map[string]string) {
	t.Helper()
	rows = map[string]string{}
	rng := rand.New(rand.NewPCG(1, 2))
	write := func(n, size int) {
		for range n {
			value := make([]byte, rng.IntN(size))
			for i := range value {
				value[i] = byte(rng.Uint32())
			}
			key := fmt.Sprintf("k|%04d", rng.IntN(10_000))
			put(key, string(value))
			rows[key] = string(value)
		}
	}
	for range 3 {
		write(60, 400)
		if err := flush(); err != nil {
			t.Fatal(err)
		}
	}
	write(100, 1500)
	write(20, 100)
	return rows
}
