package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Damage in the log, as against its end
//
// A crash may leave the write-ahead log with a torn end: the last chunk is
// there in part, and nobody was told that it was written. That must be forgiven.
// A chunk that was durable once and does not match its checksum any more is
// damage: what follows it was acknowledged, and must not be lost in silence.
//
// Pebble tells the two apart by what later blocks of the log say: their chunks
// carry an offset up to which the log had been synced. That leaves three gaps,
// each of which loses acknowledged writes without an error: damage in the last
// block of 32 KiB, which has no later one; a flipped bit in a log number that
// happens to make it the mark of the log's end; and any damage in the manifest,
// whose reader takes the first invalid record for the end, and then deletes the
// tables that the rest of it would have named. (A test flips bits everywhere.)
//
// So all of them are read here before Pebble is let in. A chunk that does not
// match is damage if
//
//   - a later chunk, in the same block too, says that the log was synced beyond
//     it; or the mark of a cleanly closed log follows; or, in a manifest, which is
//     synced record by record, any other record follows;
//   - or flipping one single bit makes it match. That is how even the very last
//     chunk is told from a torn one, which matches after a flip by chance once in
//     ten thousand times.
//
// What remains is the torn end.

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

// The form of log and manifest (Pebble's package record): blocks of 32 KiB with
// chunks in them, none across a border. A chunk is
//
//	checksum 4, length 2, encoding 1  [log number 4  [synced up to 8]]  payload
//
// with the log number in encodings 5 to 12 and the offset in 9 to 12.
const (
	blockBytes      = 32 << 10
	legacyHeader    = 7
	recycledHeader  = legacyHeader + 4
	syncedHeader    = recycledHeader + 8
	firstLegacy     = 1
	firstRecycled   = 5
	firstSynced     = 9
	afterEncodings  = 13
	checksumDelta   = 0xa282ead8 // the checksum is masked: rotated, and this added
	trailerEncoding = firstRecycled
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// logReader reads a log or a manifest as far as it is sound.
type logReader struct {
	file vfs.File
	name string
	num  uint32 // of the log
	log  bool   // it is one; else a manifest
}

// verdict is what a place in a block turned out to be.
type verdict byte

const (
	invalid verdict = iota
	sound           // a chunk
	padding         // nothing more in this block
	closed          // the mark of a log's end
)

// chunk judges what is at b[p:], and says where it ends and, for a chunk that
// carries it, up to where the log was synced when it was written.
func (r *logReader) chunk(b []byte, p int) (v verdict, end int, synced uint64) {
	left := len(b) - p
	if left < legacyHeader {
		return padding, len(b), 0
	}
	h := b[p:]
	length, encoding := int(binary.LittleEndian.Uint16(h[4:])), h[6]
	if left < syncedHeader && len(b) == blockBytes && allZero(h) {
		return padding, len(b), 0
	}
	header := legacyHeader
	switch {
	case encoding < firstLegacy || encoding >= afterEncodings || r.log != (encoding >= firstRecycled):
		return invalid, 0, 0
	case encoding >= firstSynced:
		header = syncedHeader
	case encoding >= firstRecycled:
		header = recycledHeader
	}
	if left < header {
		return invalid, 0, 0
	}
	if r.log {
		num := binary.LittleEndian.Uint32(h[legacyHeader:])
		if num == r.num+1 && encoding == trailerEncoding && allZero(h[:6]) {
			return closed, len(b), 0
		}
		if num != r.num {
			return invalid, 0, 0
		}
	}
	if left < header+length || binary.LittleEndian.Uint32(h) != mask(crc32.Checksum(h[6:header+length], castagnoli)) {
		return invalid, 0, 0
	}
	if header == syncedHeader {
		synced = binary.LittleEndian.Uint64(h[recycledHeader:])
	}
	return sound, p + header + length, synced
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

func mask(crc uint32) uint32   { return bits.RotateLeft32(crc, 17) + checksumDelta }
func unmask(sum uint32) uint32 { return bits.RotateLeft32(sum-checksumDelta, 15) }

// read looks for damage; nil: there is none.
func (r *logReader) read() (*Damage, error) {
	buf := make([]byte, blockBytes)
	for off := int64(0); ; off += blockBytes {
		b, err := r.block(buf, off)
		if err != nil || len(b) == 0 {
			return nil, err
		}
		for p := 0; p < len(b); {
			v, end, _ := r.chunk(b, p)
			if v == closed {
				return nil, nil
			}
			if v == invalid {
				return r.judge(b, off, p)
			}
			p = end
		}
	}
}

// block reads the block at off; it is short at the file's end, and empty beyond.
func (r *logReader) block(buf []byte, off int64) ([]byte, error) {
	n, err := r.file.ReadAt(buf, off)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%s cannot be read: %w", r.name, err)
	}
	return buf[:n], nil
}

// judge decides whether the invalid chunk at b[p:] is damage or the torn end.
func (r *logReader) judge(b []byte, off int64, p int) (*Damage, error) {
	d := &Damage{File: r.name, Offset: off + int64(p)}
	if bit, found := r.flippedBit(b, p); found {
		d.What = fmt.Sprintf("bit %d of byte %d has been flipped; everything from here on cannot be read", bit%8, off+int64(bit/8))
		return d, nil
	}
	follows, err := r.followed(b, off, p)
	if err != nil || !follows {
		return nil, err
	}
	d.What = "it does not match its checksum, and more was written after it"
	return d, nil
}

// followed says whether something behind b[p:] shows that it was durable once.
func (r *logReader) followed(b []byte, off int64, p int) (bool, error) {
	limit := uint64(off) + uint64(p)
	buf := make([]byte, blockBytes)
	for p++; ; p = 0 {
		for p < len(b) {
			switch v, end, synced := r.chunk(b, p); {
			case v == closed, v == sound && (!r.log || synced > limit):
				return true, nil
			case v == sound:
				p = end
			default:
				p++
			}
		}
		off += blockBytes
		var err error
		if b, err = r.block(buf, off); err != nil || len(b) == 0 {
			return false, err
		}
	}
}

// flippedBit looks for the one bit of the chunk at b[p:] that makes it sound
// when flipped, and returns its place in b in bits.
func (r *logReader) flippedBit(b []byte, p int) (bit int, found bool) {
	for i := p * 8; i < min(len(b), p+syncedHeader)*8; i++ {
		b[i/8] ^= 1 << (i % 8)
		v, _, _ := r.chunk(b, p)
		b[i/8] ^= 1 << (i % 8)
		if v == sound || v == padding && len(b)-p >= legacyHeader {
			return i, true
		}
	}
	if len(b)-p < legacyHeader {
		return 0, false
	}
	// A checksum is linear: what a flipped bit does to it depends on nothing but
	// how many bytes follow. So the payload is walked from its end.
	header, encoding := legacyHeader, b[p+6]
	switch {
	case encoding >= firstSynced && encoding < afterEncodings:
		header = syncedHeader
	case encoding >= firstRecycled:
		header = recycledHeader
	}
	end := p + header + int(binary.LittleEndian.Uint16(b[p+4:]))
	if end > len(b) {
		return 0, false
	}
	wrong := crc32.Checksum(b[p+6:end], castagnoli) ^ unmask(binary.LittleEndian.Uint32(b[p:]))
	var effect [8]uint32
	for i := range effect {
		effect[i] = castagnoli[1<<i]
	}
	for at := end - 1; at >= p+header; at-- {
		for i, e := range effect {
			if e == wrong {
				return at*8 + i, true
			}
			effect[i] = castagnoli[byte(e)] ^ e>>8
		}
	}
	return 0, false
}

// findDamage reads every log in dir and the manifest that is in force.
func findDamage(fsys vfs.FS, dir string, lock *pebble.Lock) (found []Damage, err error) {
	desc, err := pebble.Peek(dir, fsys)
	if err != nil || !desc.Exists {
		return nil, err
	}
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	manifest := fsys.PathBase(desc.ManifestFilename)
	var replayed map[string]bool
	for _, name := range names {
		num, isLog := logNumber(name)
		if !isLog && name != manifest {
			continue
		}
		d, err := readLog(fsys, dir, name, num, isLog)
		if err != nil {
			return found, err
		}
		if d == nil {
			continue
		}
		if isLog { // it may be one whose rows are in tables long since
			if replayed == nil {
				replayed = replayedLogs(fsys, dir, lock)
			}
			if !replayed[name] {
				continue
			}
		}
		found = append(found, *d)
	}
	return found, nil
}

// logNumber reads the number of a log from its name, such as 000012.log.
func logNumber(name string) (uint32, bool) {
	text, isLog := strings.CutSuffix(name, ".log")
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), isLog && err == nil
}

func readLog(fsys vfs.FS, dir, name string, num uint32, isLog bool) (*Damage, error) {
	f, err := fsys.Open(fsys.PathJoin(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := logReader{file: f, name: name, num: num, log: isLog}
	return r.read()
}

// replayedLogs are the names of the logs that opening the database would read.
// The manifest knows; so it is opened, without writing anything.
func replayedLogs(fsys vfs.FS, dir string, lock *pebble.Lock) map[string]bool {
	var mu sync.Mutex
	read := map[string]bool{}
	watched := errorfs.Wrap(fsys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen {
			mu.Lock()
			defer mu.Unlock()
			read[fsys.PathBase(op.Path)] = true
		}
		return nil
	}))
	db, err := pebble.Open(dir, &pebble.Options{FS: watched, ReadOnly: true, Logger: silent{}, Lock: lock})
	if err == nil {
		_ = db.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	return read
}

// refuseDamage is findDamage for a start: what is damaged is not opened.
func refuseDamage(fsys vfs.FS, dir string, lock *pebble.Lock) error {
	found, err := findDamage(fsys, dir, lock)
	if err != nil {
		return fmt.Errorf("data directory %s cannot be read: %w", dir, err)
	}
	if len(found) == 0 {
		return nil
	}
	more := ""
	if len(found) > 1 {
		more = fmt.Sprintf(" (and in %d more places)", len(found)-1)
	}
	return fmt.Errorf("%w: %s: %s%s; nothing was changed: keep a copy, and restore a backup, or see with holdfast check what is left", ErrDamaged, dir, found[0], more)
}
