package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

// The list of files
//
// A backup that lost a part on its way may still open as a database: a manifest that was cut
// short is one of an earlier moment, of nothing perhaps. So a backup has a list of
// its files, each with its size and SHA-256, and of its own lines:
//
//	holdfast backup 1
//	<sha256> <bytes> <name>
//	...
//	end <sha256 of all lines before>
//
// It is written last. What has it is a backup, and no server starts on it.

const (
	listHeader = "holdfast backup 1"
	// maxListBytes bounds what is read of a list: millions of files.
	maxListBytes = 1 << 30
)

// listed is a file as the list has it.
type listed struct {
	name string
	size int64
	sum  [sha256.Size]byte
}

// sumFile reads a file, and gives what the list says of it.
func sumFile(fsys vfs.FS, dir, name string) (l listed, err error) {
	f, err := fsys.Open(fsys.PathJoin(dir, name))
	if err != nil {
		return l, err
	}
	h := sha256.New()
	l.name = name
	l.size, err = io.Copy(h, f)
	h.Sum(l.sum[:0])
	return l, errors.Join(err, f.Close())
}

// writeList reads all files in dir, and writes their list, durably. step is called after
// each.
func writeList(fsys vfs.FS, dir string, step func(l listed)) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	var text bytes.Buffer
	fmt.Fprintln(&text, listHeader)
	for _, name := range names {
		if !datadir.IsData(name) || name == datadir.BackupList {
			continue
		}
		l, err := sumFile(fsys, dir, name)
		if err != nil {
			return fmt.Errorf("%s cannot be read: %w", name, err)
		}
		fmt.Fprintf(&text, "%x %d %s\n", l.sum, l.size, l.name)
		step(l)
	}
	fmt.Fprintf(&text, "end %x\n", sha256.Sum256(text.Bytes()))
	f, err := fsys.Create(fsys.PathJoin(dir, datadir.BackupList), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err = f.Write(text.Bytes()); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return datadir.SyncDir(fsys, dir)
}

// readList reads the list in dir. An error says what is wrong with it.
func readList(fsys vfs.FS, dir string) (files []listed, err error) {
	f, err := fsys.Open(fsys.PathJoin(dir, datadir.BackupList))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxListBytes))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", datadir.BackupList, err)
	}
	at := bytes.LastIndex(text, []byte("\nend ")) + 1
	if end := fmt.Sprintf("end %x\n", sha256.Sum256(text[:at])); string(text[at:]) != end {
		return nil, fmt.Errorf("%s, the list of the backup's files, is damaged or cut short", datadir.BackupList)
	}
	lines := bufio.NewScanner(bytes.NewReader(text[:at]))
	if !lines.Scan() || lines.Text() != listHeader {
		return nil, fmt.Errorf("%s begins with %q, want %q: it needs another version of this program", datadir.BackupList, lines.Text(), listHeader)
	}
	for lines.Scan() {
		l, err := parseListed(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", datadir.BackupList, err)
		}
		files = append(files, l)
	}
	return files, lines.Err()
}

func parseListed(line string) (l listed, err error) {
	sum, rest, _ := strings.Cut(line, " ")
	size, name, _ := strings.Cut(rest, " ")
	l.name = name
	n, err := hex.Decode(l.sum[:], []byte(sum[:min(len(sum), 2*len(l.sum))]))
	if err == nil {
		l.size, err = strconv.ParseInt(size, 10, 64)
	}
	if err != nil || n != len(l.sum) || len(sum) != 2*n || name == "" || strings.ContainsAny(name, `/\`) {
		return l, fmt.Errorf("the line %q is none of a file", line)
	}
	return l, nil
}

// compare says what is wrong with a file that was read; nil: nothing.
func (l listed) compare(size int64, h hash.Hash) *datadir.Damage {
	switch {
	case size != l.size:
		return &datadir.Damage{File: l.name, Offset: min(size, l.size), What: fmt.Sprintf("it has %d bytes, and the backup's list of files says %d", size, l.size)}
	case [sha256.Size]byte(h.Sum(nil)) != l.sum:
		return &datadir.Damage{File: l.name, Offset: -1, What: "it is not what was written to the backup: its SHA-256 is another than the list of files says"}
	}
	return nil
}

// missing is a file that the list has and the directory hasn't.
func (l listed) missing() *datadir.Damage {
	return &datadir.Damage{File: l.name, Offset: -1, What: "it is missing, and the backup's list of files has it"}
}

// checkList holds a backup against its list; nothing is said of a directory without one.
func checkList(fsys vfs.FS, dir string) (found []datadir.Damage) {
	if !datadir.IsBackup(fsys, dir) {
		return nil
	}
	files, err := readList(fsys, dir)
	if err != nil {
		return []datadir.Damage{{File: datadir.BackupList, Offset: -1, What: err.Error()}}
	}
	known := map[string]bool{datadir.BackupList: true}
	for _, l := range files {
		known[l.name] = true
		if d := l.verify(fsys, dir, io.Discard); d != nil {
			found = append(found, *d)
		}
	}
	names, err := fsys.List(dir)
	if err != nil {
		return append(found, datadir.Damage{File: dir, Offset: -1, What: err.Error()})
	}
	for _, name := range names {
		if datadir.IsData(name) && name != datadir.Incomplete && !known[name] {
			found = append(found, datadir.Damage{File: name, Offset: -1, What: "the backup's list of files does not have it"})
		}
	}
	return found
}

// verify reads a file, writes to w what it reads, and holds it against the list.
func (l listed) verify(fsys vfs.FS, dir string, w io.Writer) *datadir.Damage {
	f, err := fsys.Open(fsys.PathJoin(dir, l.name))
	if errors.Is(err, fs.ErrNotExist) {
		return l.missing()
	}
	if err != nil {
		return &datadir.Damage{File: l.name, Offset: -1, What: err.Error()}
	}
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(h, w), f)
	if err := errors.Join(err, f.Close()); err != nil {
		return &datadir.Damage{File: l.name, Offset: size, What: err.Error()}
	}
	return l.compare(size, h)
}
