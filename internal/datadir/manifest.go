package datadir

import (
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// manifestPause is how long a record of the manifest that found no room waits until it is
	// tried again, manifestPatience how long in all.
	manifestPause    = 20 * time.Millisecond
	manifestPatience = 10 * time.Second
)

// ManifestFS is a file system for Pebble on which what is written to a manifest waits for room
// on the disk. Pebble tries tables again that found none, but a record of its manifest only
// once: without it the database can't go on. A sync is not tried again: after one that failed
// it is unknown what the disk has.
type ManifestFS struct {
	vfs.FS
	makeRoom func()              // is called when there is none; safe for concurrent use
	waits    func(time.Duration) // is called when that was not enough, once for each wait: how long it may take at most
	patience time.Duration
}

// NewManifestFS is fs with manifests that wait for room. makeRoom is called when there is none, and waits
// once for each wait if that did not help: for how long it may go on. Both are safe for concurrent use.
func NewManifestFS(fs vfs.FS, makeRoom func(), waits func(atMost time.Duration)) *ManifestFS {
	return &ManifestFS{FS: fs, makeRoom: makeRoom, waits: waits, patience: manifestPatience}
}

// Create implements vfs.FS.
func (m *ManifestFS) Create(name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	var f vfs.File
	isManifest := strings.HasPrefix(m.PathBase(name), "MANIFEST-")
	err := m.try(isManifest, func() (err error) {
		f, err = m.FS.Create(name, k)
		return err
	})
	if err != nil || !isManifest {
		return f, err
	}
	return &manifest{File: f, fs: m}, nil
}

// try does something, again and again while it finds no room on the disk.
func (m *ManifestFS) try(again bool, do func() error) error {
	err := do()
	begin := time.Now()
	for n := 0; again && err != nil && IsNoRoom(err) && time.Since(begin) < m.patience; n++ {
		m.makeRoom()
		if n == 1 {
			m.waits(m.patience)
		}
		time.Sleep(manifestPause)
		err = do()
	}
	return err
}

type manifest struct {
	vfs.File
	fs *ManifestFS
}

// Write implements io.Writer.
func (f *manifest) Write(p []byte) (n int, err error) {
	err = f.fs.try(true, func() error {
		written, err := f.File.Write(p[n:])
		n += written
		return err
	})
	return n, err
}
