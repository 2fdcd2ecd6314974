package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

// partial ends the names of files that are not whole.
const partial = ".partial"

// Receiving is what Receive needs.
type Receiving struct {
	FS       vfs.FS
	Dir      string        // where the files arrive, see StageDir; it may have those of an earlier attempt
	Patience time.Duration // 0: the default
	// Accept says why an offer is refused; nil: it is not.
	Accept func(Offer) error
	// Room says why there is no room for so many bytes; nil: there is.
	Room func(bytes int64) error
	// Received is called with the bytes that have arrived, or need not, since it was last called.
	Received func(bytes int64)
	// Pass verifies what has arrived, which is durable, and passes the header's message on.
	Pass func(h Header) error
}

// Receive takes a snapshot. When it has returned nil, the other node was told that Pass has
// succeeded. It fails with what Accept, Room and Pass say, which the other node is told, or with
// what the disk or the network say. It does not close the connection.
func Receive(conn net.Conn, r Receiving) error {
	if r.Patience == 0 {
		r.Patience = Patience
	}
	l := newLink(conn, r.Patience)
	h, err := r.begin(l)
	if err != nil {
		return err
	}
	for _, f := range h.Files {
		if err := r.file(l, f, h.Sums); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if err := datadir.SyncDir(r.FS, r.Dir); err != nil {
		return err
	}
	return l.reply(r.Pass(h), answer{})
}

// reply tells the other node of an error, which it returns, or answers.
func (l *link) reply(err error, a answer) error {
	if err != nil {
		a = answer{Refused: err.Error()}
	}
	return errors.Join(err, l.writeJSON(kindAnswer, a))
}

// begin exchanges who sends what.
func (r *Receiving) begin(l *link) (h Header, err error) {
	var o Offer
	l.stranger = true
	if err := l.readJSON(kindOffer, &o); err != nil {
		return h, err
	}
	if err := l.reply(r.Accept(o), answer{Sums: []SumKind{CRC}}); err != nil {
		return h, err
	}
	l.stranger = false
	if err := l.readJSON(kindHeader, &h); err != nil {
		return h, err
	}
	if len(h.Files) == 0 {
		return h, l.reply(errors.New("it has no files"), answer{})
	}
	for _, f := range h.Files {
		if !isDatabase(f.Name) || f.Size < 0 {
			return h, l.reply(fmt.Errorf("%q is no file of a database", f.Name), answer{})
		}
	}
	have, err := r.clean(&h)
	if err == nil {
		err = r.Room(h.Bytes())
	}
	return h, l.reply(err, answer{Have: have})
}

// clean makes the directory, removes from it what is not to be in the snapshot, and lists what
// it has.
func (r *Receiving) clean(h *Header) (have []File, err error) {
	if err := datadir.MakeDir(r.FS, r.Dir); err != nil {
		return nil, err
	}
	names, err := r.FS.List(r.Dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	sizes := map[string]int64{}
	for _, f := range h.Files {
		sizes[f.Name] = f.Size
	}
	for _, name := range names {
		path := r.FS.PathJoin(r.Dir, name)
		info, err := r.FS.Stat(path)
		if err != nil {
			return nil, err
		}
		if size, wanted := sizes[name]; !wanted || info.IsDir() || info.Size() != size {
			if err := r.FS.RemoveAll(path); err != nil {
				return nil, err
			}
			continue
		}
		sum, err := sumFile(r.FS, path, h.Sums)
		if err != nil {
			return nil, err
		}
		have = append(have, File{Name: name, Size: info.Size(), Sum: sum})
	}
	return have, nil
}

// file receives a file, durably, but for its name.
func (r *Receiving) file(l *link, file File, sums SumKind) error {
	path := r.FS.PathJoin(r.Dir, file.Name)
	k, content, err := l.read()
	if err != nil {
		return err
	}
	if k == kindKeep {
		_, err := r.FS.Stat(path)
		r.Received(file.Size)
		return err
	}
	if err := r.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := r.FS.Create(path+partial, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	sum, got := sums.new(), int64(0)
	for err == nil && k == kindChunk {
		if got += int64(len(content)); got > file.Size {
			err = fmt.Errorf("it is longer than the %d bytes that were announced", file.Size)
			break
		}
		_, _ = sum.Write(content)
		if _, err = f.Write(content); err == nil {
			r.Received(int64(len(content)))
			k, content, err = l.read()
		}
	}
	switch {
	case err != nil:
	case k != kindEnd:
		err = fmt.Errorf("a frame of kind %d is in the middle of it", k)
	case got != file.Size:
		err = fmt.Errorf("it has %d bytes, and %d were announced", got, file.Size)
	case !bytes.Equal(sum.Sum(nil), content):
		err = errors.New("it does not match its checksum")
	default:
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, r.FS.Remove(path+partial))
	}
	return r.FS.Rename(path+partial, path)
}
