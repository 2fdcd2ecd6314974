package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Damage, as against an end
//
// A crash may leave a file with a torn end: the last of it is there in part, and
// nobody was told that it was written. That must be forgiven. What was durable once
// and does not match its checksum any more is damage: what follows it was
// acknowledged, and must not be lost in silence. How the two are told apart in the
// log is said in recover.go. Tables have checksums that Pebble compares when it reads
// them. That leaves the manifest, whose reader takes the first invalid record for the
// end, and then deletes the tables that the rest of it would have named. (A test flips
// bits everywhere.)
//
// So log and manifest are read here before Pebble is let in. A chunk of the manifest
// that does not match is damage if any other chunk follows, because it is synced
// record by record. The very last chunk may be torn instead. If flipping one single bit
// makes it match, it is mended: a start writes that bit, and a check reads the manifest
// as if it had been written. That is right in both cases. If the bit of a durable record
// went wrong, this is the record. If a write was cut off, then all that the record names
// was on the disk before the write began. By chance a chunk that was torn matches after
// a flip once in ten thousand times; Pebble then refuses the record for what is in it, as it
// would refuse damage.

// ErrDamaged: the directory holds data that does not match its checksums.
var ErrDamaged = errors.New("data directory is damaged")

// A Damage is a place on the disk that is not as it was written.
type Damage struct {
	File   string // its name in the data directory
	Offset int64  // of the first thing that does not match; -1: somewhere
	What   string
}

func (d Damage) String() string {
	if d.Offset < 0 {
		return fmt.Sprintf("%s: %s", d.File, d.What)
	}
	return fmt.Sprintf("%s, at byte %d: %s", d.File, d.Offset, d.What)
}

// The form of a manifest (Pebble's package record): blocks of 32 KiB with chunks in
// them, none across a border. A chunk is
//
//	checksum 4, length 2, encoding 1, payload
const (
	blockBytes     = 32 << 10
	chunkHeader    = 7
	firstEncoding  = 1
	afterEncodings = 5
	checksumDelta  = 0xa282ead8 // the checksum is masked: rotated, and this added
)

// manifestReader reads a manifest as far as it is sound.
type manifestReader struct {
	file       vfs.File
	path, name string
}

// verdict is what a place in a block turned out to be.
type verdict byte

const (
	invalid verdict = iota
	sound           // a chunk
	padding         // nothing more in this block
)

// chunk judges what is at b[p:], and says where it ends.
func chunk(b []byte, p int) (v verdict, end int) {
	left := len(b) - p
	if left < chunkHeader {
		return padding, len(b)
	}
	h := b[p:]
	length, encoding := int(binary.LittleEndian.Uint16(h[4:])), h[6]
	switch {
	case encoding < firstEncoding || encoding >= afterEncodings || left < chunkHeader+length:
		return invalid, 0
	case binary.LittleEndian.Uint32(h) != mask(crc32.Checksum(h[6:chunkHeader+length], castagnoli)):
		return invalid, 0
	}
	return sound, p + chunkHeader + length
}

func mask(crc uint32) uint32   { return bits.RotateLeft32(crc, 17) + checksumDelta }
func unmask(sum uint32) uint32 { return bits.RotateLeft32(sum-checksumDelta, 15) }

// read looks for damage, and for what is to be mended at the end.
func (r *manifestReader) read() (*Damage, *mend, error) {
	buf := make([]byte, blockBytes)
	for off := int64(0); ; off += blockBytes {
		b, err := r.block(buf, off)
		if err != nil || len(b) == 0 {
			return nil, nil, err
		}
		for p := 0; p < len(b); {
			v, end := chunk(b, p)
			if v == invalid {
				return r.judge(b, off, p)
			}
			p = end
		}
	}
}

// block reads the block at off; it is short at the file's end, and empty beyond.
func (r *manifestReader) block(buf []byte, off int64) ([]byte, error) {
	n, err := r.file.ReadAt(buf, off)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%s cannot be read: %w", r.name, err)
	}
	return buf[:n], nil
}

// judge decides whether the invalid chunk at b[p:] is damage or the torn end, and
// whether that can be mended.
func (r *manifestReader) judge(b []byte, off int64, p int) (*Damage, *mend, error) {
	d := &Damage{File: r.name, Offset: off + int64(p)}
	bit, found := flippedChunkBit(b, p)
	follows, err := r.followed(b, off, p)
	switch {
	case err != nil:
		return nil, nil, err
	case follows && found:
		d.What = fmt.Sprintf("bit %d of byte %d has been flipped; everything from here on cannot be read", bit%8, off+int64(bit/8))
		return d, nil, nil
	case follows:
		d.What = "it does not match its checksum, and more was written after it"
		return d, nil, nil
	case found:
		d.What = fmt.Sprintf("bit %d of byte %d is wrong in the last record, as a write that was cut off may leave it; the record is whole with that bit flipped", bit%8, off+int64(bit/8))
		return nil, &mend{Damage: *d, path: r.path, at: off + int64(bit/8), with: b[bit/8] ^ 1<<(bit%8)}, nil
	}
	return nil, nil, nil
}

// followed says whether a sound chunk comes behind b[p:].
func (r *manifestReader) followed(b []byte, off int64, p int) (bool, error) {
	buf := make([]byte, blockBytes)
	for p++; ; p = 0 {
		for ; p < len(b); p++ {
			if v, _ := chunk(b, p); v == sound {
				return true, nil
			}
		}
		off += blockBytes
		var err error
		if b, err = r.block(buf, off); err != nil || len(b) == 0 {
			return false, err
		}
	}
}

// flippedChunkBit looks for the one bit of the chunk at b[p:] that makes it sound
// when flipped, and returns its place in b in bits.
func flippedChunkBit(b []byte, p int) (bit int, found bool) {
	if len(b)-p < chunkHeader {
		return 0, false
	}
	for i := p * 8; i < (p+chunkHeader)*8; i++ {
		b[i/8] ^= 1 << (i % 8)
		v, _ := chunk(b, p)
		b[i/8] ^= 1 << (i % 8)
		if v == sound {
			return i, true
		}
	}
	end := p + chunkHeader + int(binary.LittleEndian.Uint16(b[p+4:]))
	if end > len(b) {
		return 0, false
	}
	wrong := uint64(crc32.Checksum(b[p+6:end], castagnoli) ^ unmask(binary.LittleEndian.Uint32(b[p:])))
	bit, found = wrongBit(end-p-6, wrong<<32|wrong, castagnoli, castagnoli)
	return (p+6)*8 + bit, found
}

// wrongBit looks for the one bit of n bytes that, flipped, changes two checksums of
// them by the halves of wrong. A checksum is linear: what a flipped bit does to it
// depends on nothing but how many bytes follow. So the bytes are walked from their end.
func wrongBit(n int, wrong uint64, high, low *crc32.Table) (bit int, found bool) {
	var effect [8]uint64
	for i := range effect {
		effect[i] = uint64(high[1<<i])<<32 | uint64(low[1<<i])
	}
	for at := n - 1; at >= 0; at-- {
		for i, e := range effect {
			if e == wrong {
				return at*8 + i, true
			}
			h, l := uint32(e>>32), uint32(e)
			effect[i] = uint64(high[byte(h)]^h>>8)<<32 | uint64(low[byte(l)]^l>>8)
		}
	}
	return 0, false
}

// mend is a byte of a file that is to be another.
type mend struct {
	Damage
	path string
	at   int64
	with byte
}

// write mends the file itself.
func (m *mend) write(fsys vfs.FS) error {
	f, err := fsys.OpenReadWrite(m.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{m.with}, m.at)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// mendedFS is a file system on which a file reads as if it had been mended.
type mendedFS struct {
	vfs.FS
	mend *mend
}

func (fsys mendedFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fsys.FS.Open(name, opts...)
	if err != nil || name != fsys.mend.path {
		return f, err
	}
	return &mendedFile{File: f, mend: fsys.mend}, nil
}

type mendedFile struct {
	vfs.File
	mend *mend
	at   int64 // of the next Read
}

func (f *mendedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.patch(p[:n], f.at)
	f.at += int64(n)
	return n, err
}

func (f *mendedFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.patch(p[:n], off)
	return n, err
}

func (f *mendedFile) patch(p []byte, off int64) {
	if i := f.mend.at - off; i >= 0 && i < int64(len(p)) {
		p[i] = f.mend.with
	}
}

// findDamage reads the manifest that is in force, and what the tables leave to the log.
// m is what is to be mended in the manifest.
func findDamage(fsys vfs.FS, dir string, lock *dirLock) (found []Damage, m *mend, err error) {
	desc, err := pebble.Peek(dir, fsys)
	if err != nil || !desc.Exists {
		return nil, nil, err
	}
	d, m, err := readManifest(fsys, desc.ManifestFilename)
	if err != nil {
		return nil, nil, err
	}
	if d != nil {
		return []Damage{*d}, nil, nil // without it nothing says where the log is to be read from
	}
	if m != nil {
		fsys = mendedFS{fsys, m}
	}
	db, err := pebble.Open(dir, &pebble.Options{
		FS: fsys, ReadOnly: true, Logger: silent{}, Lock: lock.file,
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}}, // an error says so too
	})
	if err != nil {
		return nil, m, nil // whoever opens it will say why
	}
	state, err := readLogState(db)
	err = errors.Join(err, db.Close())
	if pebble.IsCorruptionError(err) {
		return []Damage{{File: dir, Offset: -1, What: "a table: " + plain(err)}}, m, nil
	}
	if err != nil {
		return nil, nil, err
	}
	log, err := recoverLog(fsys, dir, state)
	return log.damage, m, err
}

func readManifest(fsys vfs.FS, path string) (*Damage, *mend, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	r := manifestReader{file: f, path: path, name: fsys.PathBase(path)}
	return r.read()
}

// refuseDamage is findDamage for a start: what is damaged is not opened, and only what
// is not is mended.
func (j *Journal) refuseDamage() error {
	fsys, dir := j.o.FS, j.o.Dir
	found, m, err := findDamage(fsys, dir, j.lock)
	if err != nil {
		return fmt.Errorf("data directory %s cannot be read: %w", dir, err)
	}
	if err := refusal(dir, found); err != nil || m == nil {
		return err
	}
	j.sayMended([]Damage{m.Damage})
	if j.o.ReadOnly {
		j.o.FS = mendedFS{fsys, m}
		return nil
	}
	if err := m.write(fsys); err != nil {
		return fmt.Errorf("%s cannot be mended: %w", m.path, err)
	}
	return nil
}

// sayMended notes what the start has made whole.
func (j *Journal) sayMended(what []Damage) {
	j.mended = append(j.mended, what...)
	for _, d := range what {
		j.o.Logger.Warn("mended the end of what was written before a crash", "dir", j.o.Dir, "file", d.File, "offset", d.Offset, "what", d.What)
	}
}

// refusal says what is damaged; nil: nothing.
func refusal(dir string, found []Damage) error {
	if len(found) == 0 {
		return nil
	}
	more := ""
	if len(found) > 1 {
		more = fmt.Sprintf(" (and in %d more places)", len(found)-1)
	}
	return fmt.Errorf("%w: %s: %s%s; nothing was changed: keep a copy, and restore a backup, or see with holdfast check what is left", ErrDamaged, dir, found[0], more)
}
