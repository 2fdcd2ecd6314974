package consensus

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A disk is a file system that can lose its power: each sector that was written and not
// synced, and each name, then is as it is or as it was. (vfs.MemFS can do the same, but what
// it loses depends on the order of a map.)
type disk struct {
	vfs.FS // what is not needed here
	names  map[string]*file
	synced map[string]*file // of each file, the name that a power cut leaves it
	files  []*file          // all that have a name in one of both
}

type file struct {
	content, synced []byte
	from, to        int // what was written since it was synced
}

const sector = 512

func newDisk() *disk { return &disk{names: map[string]*file{}, synced: map[string]*file{}} }

// crashed is the disk after a power cut.
func (d *disk) crashed(rng *rand.Rand) *disk {
	next := newDisk()
	for _, f := range d.files {
		is, was := nameOf(d.names, f), nameOf(d.synced, f)
		name := is
		if is != was && rng.IntN(2) == 0 {
			name = was
		}
		if name == "" || next.names[name] != nil {
			continue
		}
		content := f.crashed(rng)
		f := &file{content: content, synced: slices.Clone(content)}
		next.files = append(next.files, f)
		next.names[name], next.synced[name] = f, f
	}
	return next
}

func nameOf(names map[string]*file, f *file) string {
	for name, named := range names {
		if named == f {
			return name
		}
	}
	return ""
}

// crashed is the file's content after a power cut.
func (f *file) crashed(rng *rand.Rand) []byte {
	content := slices.Clone(f.content)
	for at := f.from / sector * sector; at < f.to; at += sector {
		end := min(at+sector, len(content))
		is, was := content[at:end], make([]byte, end-at)
		if at < len(f.synced) {
			copy(was, f.synced[at:])
		}
		if string(is) != string(was) && rng.IntN(2) == 0 {
			copy(is, was)
		}
	}
	if len(content) > len(f.synced) && rng.IntN(2) == 0 {
		content = content[:len(f.synced)]
	}
	return content
}

func (d *disk) PathJoin(elem ...string) string     { return path.Join(elem...) }
func (d *disk) PathDir(name string) string         { return path.Dir(name) }
func (d *disk) MkdirAll(string, os.FileMode) error { return nil }
func (d *disk) RemoveAll(string) error             { return nil } // of a new directory

func (d *disk) List(dir string) ([]string, error) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		if path.Dir(name) == dir {
			names = append(names, path.Base(name))
		}
	}
	return names, nil
}

func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	delete(d.names, name)
	return d.OpenReadWrite(name, c)
}

func (d *disk) Open(name string, _ ...vfs.OpenOption) (vfs.File, error) {
	f, ok := d.names[name]
	if !ok {
		return nil, &os.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &handle{d: d, f: f}, nil
}

func (d *disk) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	if d.names[name] == nil {
		f := &file{}
		d.names[name], d.files = f, append(d.files, f)
	}
	return d.Open(name)
}

func (d *disk) OpenDir(string) (vfs.File, error) { return &handle{d: d}, nil }

func (d *disk) Remove(name string) error {
	if d.names[name] == nil {
		return &os.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	delete(d.names, name)
	return nil
}

func (d *disk) Rename(from, to string) error {
	if d.names[from] == nil {
		return &os.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	d.names[to] = d.names[from]
	delete(d.names, from)
	return nil
}

// handle is an open file; without one, an open directory.
type handle struct {
	vfs.File // what is not needed here
	d        *disk
	f        *file
	read     int
}

func (h *handle) Read(p []byte) (int, error) {
	n := copy(p, h.f.content[min(h.read, len(h.f.content)):])
	if h.read += n; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (h *handle) Write(p []byte) (int, error) { return h.WriteAt(p, int64(len(h.f.content))) }

func (h *handle) WriteAt(p []byte, at int64) (int, error) {
	end := int(at) + len(p)
	if h.f.from == h.f.to {
		h.f.from, h.f.to = int(at), end
	}
	h.f.from, h.f.to = min(h.f.from, int(at)), max(h.f.to, end)
	if end > len(h.f.content) {
		h.f.content = append(h.f.content, make([]byte, end-len(h.f.content))...)
	}
	return copy(h.f.content[at:], p), nil
}

func (h *handle) SyncData() error { return h.Sync() }

func (h *handle) Sync() error {
	if f := h.f; f != nil {
		if n := len(f.content) - len(f.synced); n > 0 {
			f.synced = append(f.synced, make([]byte, n)...)
		}
		copy(f.synced[f.from:f.to], f.content[f.from:f.to])
		f.from, f.to = 0, 0
		return nil
	}
	h.d.synced = maps.Clone(h.d.names)
	h.d.files = slices.DeleteFunc(h.d.files, func(f *file) bool { return nameOf(h.d.names, f) == "" })
	return nil
}

func (h *handle) Close() error { return nil }
func (h *handle) Fd() uintptr  { return vfs.InvalidFd }

func (h *handle) Stat() (vfs.FileInfo, error) {
	if h.f == nil {
		return nil, errors.New("a directory")
	}
	return info{size: int64(len(h.f.content))}, nil
}

type info struct {
	vfs.FileInfo
	size int64
}

func (i info) Size() int64 { return i.size }
