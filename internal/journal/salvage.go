package journal

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// Salvage
//
// A start refuses a directory in which anything is damaged, because it can't know what
// that was. A salvage is for the person who has decided to go on with the rest. It reads
// what can be read, and writes it to a new directory:
//
//   - each table by itself, past its bad blocks, since Pebble ends at the first one;
//   - these rows merged as Pebble does: of a key the row with the highest sequence number,
//     unless a deletion is newer;
//   - the log on top, past its bad frames.
//
// Where a block is bad, tables below may still have what its rows were before. An old
// value must not come back in place of a newer one, so there rows that are older than the table
// with the bad block are left out, too. A bad frame in the log can't be handled like that, as it
// doesn't say which rows it had: they are as they were before it.
//
// If the manifest is damaged nothing says which tables are in force, and all
// that are there are taken. Then what had been deleted may come back: the deletion's table
// may be gone already, as one that is in force has neither of them.

// A Salvaged is what a salvage could not copy.
type Salvaged struct {
	Lost []Damage // what can't be read
	// Older counts the rows that were left out because what can't be read may be newer.
	Older int64
}

// Salvage copies what can be read in the directory that o says into the directory dest, which
// must not exist, be empty, or hold what a salvage left that was cut off. finish is given
// the copy to take out rows that make no sense, and verify asked about it when it is closed, as with
// Restore. The directory itself is left as it is.
func Salvage(o Options, dest string, finish func(*Journal) error, verify func(dir string) error) (found Salvaged, err error) {
	o.setDefaults()
	if _, err := o.FS.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) {
		return found, fmt.Errorf("there is no data directory %s", o.Dir)
	}
	l, err := lock(o.FS, o.Dir)
	if err != nil {
		return found, err
	}
	s := &salvage{o: o, lock: l, meta: map[string][]byte{}}
	partial, err := s.begin(dest)
	if err == nil {
		err = s.copy(partial, finish)
		if err == nil {
			err = verify(partial)
		}
		if err == nil {
			err = removeLock(o.FS, partial)
		}
		if err == nil { // for the case that the move is cut off
			err = writeList(o.FS, partial, func(listed) {})
		}
		if err == nil {
			err = endCopy(o.FS, partial, dest, false)
		} else {
			err = errors.Join(err, o.FS.RemoveAll(partial))
		}
	}
	return s.found, errors.Join(err, l.Close())
}

type salvage struct {
	o     Options // of what is salvaged
	lock  *dirLock
	found Salvaged
	to    *Journal
	meta  map[string][]byte // the journal's own rows

	logFrom uint64 // the first batch that the log may have

	tables  []*salvagedTable
	removed spans // by deletions of ranges
	unknown spans // where something newer can't be read
}

func (s *salvage) lose(file string, offset int64, format string, args ...any) {
	s.found.Lost = append(s.found.Lost, Damage{File: file, Offset: offset, What: fmt.Sprintf(format, args...)})
}

// begin looks for the tables, and makes room for the copy.
func (s *salvage) begin(dest string) (partial string, err error) {
	names, err := s.o.FS.List(s.o.Dir)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(names, func(name string) bool {
		_, isLog := segmentNumber(name)
		return isLog || strings.HasSuffix(name, ".sst") || strings.HasPrefix(name, "MANIFEST")
	}) {
		return "", fmt.Errorf("%w: %s holds no tables and no log", ErrForeign, s.o.Dir)
	}
	if partial, err = beginCopy(s.o.FS, dest); err != nil {
		return "", err
	}
	if err := s.inForce(); err != nil {
		s.lose(s.o.Dir, -1, "the list of tables can't be used (%s): all tables that are there are read, and rows that had been deleted may be back", plain(err))
		s.allTables(names)
	}
	return partial, nil
}

// inForce takes the tables that the manifest names.
func (s *salvage) inForce() error {
	desc, err := pebble.Peek(s.o.Dir, s.o.FS)
	if err != nil {
		return err
	}
	if !desc.Exists {
		return errors.New("there is none")
	}
	damage, m, err := readManifest(s.o.FS, desc.ManifestFilename)
	if err != nil {
		return err
	}
	if damage != nil {
		return errors.New(damage.String())
	}
	fsys := s.o.FS
	if m != nil {
		fsys = mendedFS{fsys, m}
	}
	db, err := pebble.Open(s.o.Dir, &pebble.Options{
		FS: fsys, ReadOnly: true, Logger: silent{}, Lock: s.lock.file, DisableConsistencyCheck: true,
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
	})
	if err != nil {
		return err
	}
	levels, err := db.SSTables()
	for _, tables := range levels {
		for _, t := range tables {
			s.tables = append(s.tables, &salvagedTable{
				name: t.BackingSSTNum.String() + ".sst", newest: uint64(t.LargestSeqNum),
				first: bytes.Clone(t.Smallest.UserKey), last: bytes.Clone(t.Largest.UserKey),
			})
		}
	}
	return errors.Join(err, db.Close())
}

func (s *salvage) allTables(names []string) {
	s.tables = nil
	slices.Sort(names)
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			s.tables = append(s.tables, &salvagedTable{name: name, newest: 1<<64 - 1, last: bytes.Repeat([]byte{0xff}, 64)})
		}
	}
}

// copy writes what can be read to a new journal.
func (s *salvage) copy(partial string, finish func(*Journal) error) error {
	src := &Journal{o: s.o, lock: s.lock, links: &linkFS{FS: s.o.FS}}
	ro := src.tableOptions()
	for _, t := range s.tables {
		if err := t.open(s, ro); err != nil {
			s.lose(t.name, -1, "the table can't be read, keys from %q to %q: %s", t.first, t.last, plain(err))
			s.unknown = append(s.unknown, span{t.first, after(t.last), t.newest})
		}
		defer t.close()
	}
	o := s.o
	o.Dir, o.ReadOnly, o.Durability, o.Reserve, o.Meta, o.Fatal = partial, false, NoSync, 0, nil, func(error) {}
	var err error
	if s.to, err = Open(o); err != nil {
		return err
	}
	err = s.mergeTables()
	if err == nil {
		err = s.replayLog()
	}
	if meta := s.meta[string(metaKey)]; meta != nil {
		s.to.SetMeta(func(dst []byte) []byte { return append(dst, meta...) })
		s.to.meta = meta
	}
	s.to.WaitDurable()
	if err == nil {
		err = finish(s.to)
	}
	s.to.Begin().End(nil) // the meta record rides in a batch
	return errors.Join(err, s.to.Close())
}

// set writes a row, and keeps those of the journal's own.
func (s *salvage) set(key, value []byte) {
	if bytes.HasPrefix(key, []byte("m|")) {
		s.meta[string(key)] = bytes.Clone(value)
		return
	}
	s.to.Admit()
	a := s.to.Begin()
	a.Set(key, value)
	a.End(nil)
}

// span is a range of keys, and a sequence number.
type span struct {
	from, to []byte // to is exclusive
	number   uint64
}

// spans are asked about keys in rising order.
type spans []span

// sweep goes along spans.
type sweep struct {
	waiting, active spans
}

func (s spans) sweep() *sweep {
	slices.SortFunc(s, func(a, b span) int { return bytes.Compare(a.from, b.from) })
	return &sweep{waiting: s}
}

// at gives the highest number of the spans that have key.
func (s *sweep) at(key []byte) (number uint64) {
	for len(s.waiting) > 0 && bytes.Compare(s.waiting[0].from, key) <= 0 {
		s.active = append(s.active, s.waiting[0])
		s.waiting = s.waiting[1:]
	}
	s.active = slices.DeleteFunc(s.active, func(a span) bool { return bytes.Compare(a.to, key) <= 0 })
	for _, a := range s.active {
		number = max(number, a.number)
	}
	return number
}

// after is the key that follows.
func after(key []byte) []byte { return append(bytes.Clone(key), 0) }

// mergeTables writes the newest row of each key.
func (s *salvage) mergeTables() error {
	var rows rowHeap
	for _, t := range s.tables {
		if t.reader != nil && t.next() {
			rows = append(rows, t)
		}
	}
	heap.Init(&rows)
	removed, unknown := s.removed.sweep(), s.unknown.sweep()
	var last []byte
	for first := true; len(rows) > 0; first = false {
		t := rows[0]
		newest := first || !bytes.Equal(t.key, last)
		if newest {
			last = append(last[:0], t.key...)
			switch bad, gone := unknown.at(t.key), removed.at(t.key); {
			case t.number < bad:
				s.found.Older++
			case !t.deleted && t.number >= gone:
				s.set(t.key, t.value)
			}
		}
		if t.next() {
			heap.Fix(&rows, 0)
		} else {
			heap.Pop(&rows)
		}
		if err := s.to.failure(); err != nil {
			return err
		}
	}
	for _, t := range s.tables {
		t.report(s)
	}
	return nil
}

// rowHeap has tables by the row that each is at: keys rise, and of a key the newest row
// comes first.
type rowHeap []*salvagedTable

func (h rowHeap) Len() int      { return len(h) }
func (h rowHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h rowHeap) Less(i, j int) bool {
	if c := bytes.Compare(h[i].key, h[j].key); c != 0 {
		return c < 0
	}
	return h[i].number > h[j].number
}
func (h *rowHeap) Push(x any) { *h = append(*h, x.(*salvagedTable)) }
func (h *rowHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// salvagedTable is a table that is read past its bad blocks.
type salvagedTable struct {
	name        string
	newest      uint64 // sequence number
	first, last []byte // keys
	reader      *sstable.Reader
	entries     uint64 // as its properties say; 0: unknown
	parts       spans  // that can be read
	gaps        spans  // that can't

	it         sstable.Iterator // over the first of parts; nil: not begun
	key, value []byte
	number     uint64
	deleted    bool
	read       uint64 // entries
	fault      error  // what else could not be read
}

// open finds the parts that can be read.
func (t *salvagedTable) open(s *salvage, ro sstable.ReaderOptions) error {
	f, err := s.o.FS.Open(s.o.FS.PathJoin(s.o.Dir, t.name))
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, ro)
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	t.reader = r
	if p, err := r.ReadPropertiesBlock(context.Background(), nil); err == nil {
		t.entries = p.NumEntries - min(p.NumEntries, p.NumRangeDeletions)
	}
	if err := t.readRemoved(s); err != nil {
		// What it removed can't be told from what is to stay, so nothing under it is taken.
		t.fault = fmt.Errorf("its deletions of ranges: %w", err)
		s.unknown = append(s.unknown, span{t.first, after(t.last), t.newest})
	}
	t.find(t.first, after(t.last), maxHalvings)
	s.unknown = append(s.unknown, t.gaps...)
	return nil
}

// readRemoved reads the deletions of ranges.
func (t *salvagedTable) readRemoved(s *salvage) error {
	it, err := t.reader.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil || it == nil {
		return err
	}
	defer it.Close()
	removal, err := it.First()
	for ; removal != nil && err == nil; removal, err = it.Next() {
		for _, k := range removal.Keys {
			s.removed = append(s.removed, span{bytes.Clone(removal.Start), bytes.Clone(removal.End), uint64(k.SeqNum())})
		}
	}
	return err
}

func (t *salvagedTable) iterator() (sstable.Iterator, error) {
	return t.reader.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
}

// maxHalvings bounds the search for what can be read between bad blocks.
const maxHalvings = 14

// step is the row at or behind a key, or the next one if there is no key.
func step[KV any, Flags ~uint8](seek func([]byte, Flags) KV, next func() KV, from []byte) KV {
	if from != nil {
		return seek(from, 0)
	}
	return next()
}

// find looks for what can be read with from <= key < to: from both ends up to what can't
// be read, and then in the middle of what is left, again and again.
func (t *salvagedTable) find(from, to []byte, halvings int) {
	last, whole := t.reach(from, to)
	if last != nil || whole {
		t.parts = append(t.parts, span{from: from, to: to})
	}
	if whole {
		return
	}
	if last != nil {
		t.parts[len(t.parts)-1].to = after(last)
		from = after(last)
	}
	first := t.reachBack(from, to)
	end := to
	if first != nil {
		end = first
	}
	if middle := between(from, end); middle != nil && halvings > 0 && t.manyBlocks(from, end) {
		t.find(from, middle, halvings-1)
		t.find(middle, end, halvings-1)
	} else if n := len(t.gaps); n > 0 && bytes.Equal(t.gaps[n-1].to, from) {
		t.gaps[n-1].to = end
	} else {
		t.gaps = append(t.gaps, span{from, end, t.newest})
	}
	if first != nil {
		t.parts = append(t.parts, span{from: first, to: to})
	}
}

// manyBlocks says whether there is a block between those of two keys, as the index has it: a look into a
// bad one costs Pebble a search for the bit that is wrong.
func (t *salvagedTable) manyBlocks(from, to []byte) bool {
	var sizes [3]uint64
	for i, keys := range [3][2][]byte{{from, to}, {from, from}, {to, to}} {
		size, err := t.reader.EstimateDiskUsage(keys[0], keys[1], sstable.NoReadEnv)
		if err != nil {
			return false
		}
		sizes[i] = size
	}
	const rounding = 16
	return sizes[0] > sizes[1]+sizes[2]+rounding
}

// reach reads from a key up to another, and gives the last key before what can't be
// read, or that there is no such thing.
func (t *salvagedTable) reach(from, to []byte) (last []byte, whole bool) {
	it, err := t.iterator()
	if err != nil {
		return nil, false
	}
	defer it.Close()
	for at := it.SeekGE(from, 0); at != nil; at = it.Next() {
		if bytes.Compare(at.K.UserKey, to) >= 0 {
			return last, true
		}
		last = append(last[:0], at.K.UserKey...)
	}
	return last, it.Error() == nil
}

// reachBack reads from before a key back to another, and gives the first key behind what
// can't be read.
func (t *salvagedTable) reachBack(from, before []byte) (first []byte) {
	it, err := t.iterator()
	if err != nil {
		return nil
	}
	defer it.Close()
	for at := it.SeekLT(before, 0); at != nil && bytes.Compare(at.K.UserKey, from) >= 0; at = it.Prev() {
		first = append(first[:0], at.K.UserKey...)
	}
	return first
}

// between is a key in the middle of two; nil: they are too close.
func between(a, b []byte) []byte {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	tail := func(key []byte) uint64 {
		var t [8]byte
		copy(t[1:], key[n:])
		return binary.BigEndian.Uint64(t[:])
	}
	low, high := tail(a), tail(b)
	if high < low+2 {
		return nil
	}
	var t [8]byte
	binary.BigEndian.PutUint64(t[:], low+(high-low)/2)
	return append(bytes.Clone(a[:n]), t[1:]...)
}

// next goes to the next row; false: there is none that can be read. A row whose value
// can't be read counts as a deletion: what is older must not come back for it.
func (t *salvagedTable) next() bool {
	for len(t.parts) > 0 {
		var from []byte
		if t.it == nil {
			it, err := t.iterator()
			if err != nil {
				t.fault = err
				return false
			}
			t.it, from = it, t.parts[0].from
		}
		at := step(t.it.SeekGE, t.it.Next, from)
		if at == nil || bytes.Compare(at.K.UserKey, t.parts[0].to) >= 0 {
			_ = t.it.Close() // what it can't read is behind this part
			t.it, t.parts = nil, t.parts[1:]
			continue
		}
		value, _, err := at.Value(nil)
		if err != nil {
			t.fault = err
		} else {
			t.read++
		}
		t.key, t.value = append(t.key[:0], at.K.UserKey...), append(t.value[:0], value...)
		t.number = uint64(at.K.SeqNum())
		kind := at.K.Kind()
		t.deleted = err != nil || kind != pebble.InternalKeyKindSet && kind != pebble.InternalKeyKindSetWithDelete
		return true
	}
	return false
}

// report says what could not be read.
func (t *salvagedTable) report(s *salvage) {
	if t.reader == nil || len(t.gaps) == 0 && t.fault == nil {
		return
	}
	what := "a part of it can't be read"
	if t.entries > 0 {
		what = fmt.Sprintf("%d of its %d rows can't be read", t.entries-min(t.entries, t.read), t.entries)
	}
	for i, gap := range t.gaps {
		if i == 10 {
			what += fmt.Sprintf(", and in %d more places", len(t.gaps)-i)
			break
		}
		what += fmt.Sprintf(", from key %q to before %q", gap.from, gap.to)
	}
	if t.fault != nil {
		what += ": " + plain(t.fault)
	}
	s.lose(t.name, -1, "%s", what)
}

func (t *salvagedTable) close() {
	if t.it != nil {
		_ = t.it.Close()
	}
	if t.reader != nil {
		_ = t.reader.Close()
	}
}

// replayLog applies what can be read of the log.
func (s *salvage) replayLog() error {
	frames := s.readFrames()
	var applied uint64
	if value := s.meta[string(appliedKey)]; len(value) == 8 {
		applied = binary.BigEndian.Uint64(value)
	}
	// Batches that are in tables, too, may be applied again if none is missing up to the end
	// of those; they bring back rows of bad blocks.
	begin := slices.IndexFunc(frames, func(f frame) bool { return f.number > applied })
	if begin < 0 {
		begin = len(frames)
	}
	if s.logFrom > applied+1 {
		s.lose(segment{first: applied + 1}.name(), -1, "batches %d to %d are missing in the log", applied+1, s.logFrom-1)
	}
	if begin > 0 && frames[begin-1].number == applied {
		for begin--; begin > 0 && frames[begin-1].number+1 == frames[begin].number; begin-- {
		}
	}
	for _, f := range frames[begin:] {
		if err := s.replayFrame(f); err != nil {
			s.lose(segment{first: f.number}.name(), -1, "batch %d can't be decoded: %v", f.number, err)
		}
		if err := s.to.failure(); err != nil {
			return err
		}
	}
	return nil
}

func (s *salvage) replayFrame(f frame) error {
	s.to.Admit()
	a := s.to.Begin()
	defer a.End(nil)
	for r := batchrepr.Reader(f.rows); ; {
		kind, key, value, more, err := r.Next()
		if err != nil || !more {
			return err
		}
		switch {
		case bytes.HasPrefix(key, []byte("m|")):
			s.meta[string(key)] = bytes.Clone(value)
		case kind == pebble.InternalKeyKindRangeDelete:
			a.DeleteRange(key, value)
		case kind == pebble.InternalKeyKindDelete:
			a.Delete(key)
		default:
			a.Set(key, value)
		}
	}
}

// readFrames reads all frames of the log, in order, past those that are damaged.
func (s *salvage) readFrames() (frames []frame) {
	segments, err := listSegments(s.o.FS, s.o.Dir)
	if err != nil {
		s.lose(s.o.Dir, -1, "%v", err)
	}
	if _, logged := s.meta[string(loggedKey)]; logged && len(segments) == 0 {
		s.lose(s.o.Dir, -1, "the log is missing")
	}
	for i, seg := range segments {
		if i == 0 {
			s.logFrom = seg.first
		}
		b, err := readFile(s.o.FS, s.o.FS.PathJoin(s.o.Dir, seg.name()))
		if err != nil {
			s.lose(seg.name(), -1, "it can't be read: %v", err)
			continue
		}
		d := s.disguise(seg, b)
		limit := uint64(1<<64 - 1)
		if i+1 < len(segments) {
			limit = segments[i+1].first
		}
		last := seg.first - 1
		found := d.framesPast(b, &last, limit, func(p int, from, to uint64) {
			s.lose(seg.name(), int64(p), "batches %d to %d can't be read", from, to)
		})
		frames = append(frames, found...)
		switch end := uint64(limit - 1); {
		case i+1 < len(segments) && last < end:
			s.lose(seg.name(), -1, "batches %d to %d can't be read", last+1, end)
		case i+1 == len(segments) && d.marked(b, found):
			s.lose(segment{first: last + 1}.name(), -1, "it is missing, with all batches from %d on", last+1)
		}
	}
	return frames
}

// disguise is that of the log, which the first frame of a segment shows, too.
func (s *salvage) disguise(seg segment, b []byte) disguise {
	if value := s.meta[string(disguiseKey)]; len(value) == 8 {
		return disguise(binary.LittleEndian.Uint64(value))
	}
	if f, ok := disguise(0).readFrame(b, 0); ok {
		return disguise(f.number ^ seg.first)
	}
	return 0
}

// framesPast gives the frames of a segment with numbers above *last and below limit, and
// says which are missing between them.
func (d disguise) framesPast(b []byte, last *uint64, limit uint64, missing func(p int, from, to uint64)) (frames []frame) {
	gap := -1
	for p := 0; p+frameHeader <= len(b); {
		n, _ := d.numbers(b[p:])
		if n > *last && n < limit && n-*last <= uint64(len(b)/frameHeader)+1 {
			if f, ok := d.readFrame(b, p); ok && !f.isMark() {
				if n > *last+1 {
					missing(max(gap, 0), *last+1, n-1)
				}
				frames = append(frames, f)
				*last, p, gap = n, f.end, -1
				continue
			}
		}
		if gap < 0 {
			gap = p
			if bit, found := d.flippedBit(b, p, *last+1); found {
				b[bit/8] ^= 1 << (bit % 8)
				continue
			}
		}
		p++
	}
	return frames
}

// marked says whether a mark follows the last of a segment's frames.
func (d disguise) marked(b []byte, frames []frame) bool {
	if len(frames) == 0 {
		return false
	}
	last := frames[len(frames)-1]
	f, ok := d.readFrame(b, last.end)
	return ok && f.isMark() && f.number == last.number+1
}
