package snapshot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// database is the content of files, by name.
type database map[string]string

func (d database) write(t *testing.T, fsys vfs.FS, dir string) {
	t.Helper()
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range d {
		f, err := fsys.Create(fsys.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.Write([]byte(content))
		}
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	syncDirs(t, fsys, dir)
}

// syncDirs makes the names in a directory durable, and those of the directories above it.
func syncDirs(t *testing.T, fsys vfs.FS, dir string) {
	t.Helper()
	for ; ; dir = fsys.PathDir(dir) {
		d, err := fsys.OpenDir(dir)
		if err = errors.Join(err, d.Sync(), d.Close()); err != nil {
			t.Fatal(err)
		}
		if dir == "/" || dir == "." {
			return
		}
	}
}

func read(t *testing.T, fsys vfs.FS, dir string) database {
	t.Helper()
	files, err := listFiles(fsys, dir)
	if err != nil {
		t.Fatal(err)
	}
	d := database{}
	for _, file := range files {
		f, err := fsys.Open(fsys.PathJoin(dir, file.Name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		d[file.Name] = string(b)
	}
	return d
}

func (d database) bytes() (n int64) {
	for _, content := range d {
		n += int64(len(content))
	}
	return n
}

func (d database) equals(other database) bool {
	for name, content := range d {
		if got, has := other[name]; !has || got != content {
			return false
		}
	}
	return len(d) == len(other)
}

// sample makes a database with tables of some sizes around that of a chunk.
func sample(seed uint64) database {
	rng := rand.New(rand.NewPCG(seed, 7))
	d := database{"MANIFEST-000001": fmt.Sprint("manifest ", seed), "OPTIONS-000002": "options", "marker.manifest.000001.MANIFEST-000001": ""}
	for i, size := range []int{0, 1, chunkBytes - 1, chunkBytes, chunkBytes + 1, 2*chunkBytes + 100} {
		d[fmt.Sprintf("%06d.sst", 10+i)] = strings.Repeat(fmt.Sprintf("%08x", rng.Uint32()), size/8+1)[:size]
	}
	return d
}

// transfer is one attempt. cut bytes from the sender are passed on; a negative number: all.
type transfer struct {
	sent, received error
	bytes          int64 // of chunks
	passed         *Header
}

func attempt(t *testing.T, from, to vfs.FS, cut int64, spoil func([]byte), change func(*Receiving)) (out transfer) {
	t.Helper()
	return attemptWith(t, nil, from, to, cut, spoil, change)
}

// attemptWith is attempt of a sender that remembers what it has read.
func attemptWith(t *testing.T, sums *Sums, from, to vfs.FS, cut int64, spoil func([]byte), change func(*Receiving)) (out transfer) {
	t.Helper()
	a, b := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer a.Close()
		out.sent = Send(context.Background(), &limited{a, cut, spoil}, Sending{
			FS: from, Offer: Offer{Cluster: 1, From: 2, To: 3},
			Make: func() (string, Header, error) { return "/copy", Header{Index: 9, Term: 4, Message: []byte("m")}, nil },
			Sums: sums,
			Sent: func(n int64) { out.bytes += n },
		})
	}()
	r := Receiving{
		FS: to, Dir: "/node/snapshot",
		Accept:   func(Offer) error { return nil },
		Room:     func(int64) error { return nil },
		Received: func(int64) {},
		Pass:     func(h Header) error { out.passed = &h; return nil },
	}
	if change != nil {
		change(&r)
	}
	out.received = Receive(b, r)
	_ = b.Close()
	<-ended
	return out
}

// limited is a connection that breaks when so many bytes were written.
type limited struct {
	net.Conn
	left  int64
	spoil func([]byte)
}

func (l *limited) Write(p []byte) (int, error) {
	if l.spoil != nil {
		p = slices.Clone(p)
		l.spoil(p)
	}
	if l.left >= 0 {
		if l.left < int64(len(p)) {
			_, _ = l.Conn.Write(p[:l.left])
			return 0, errors.Join(io.ErrClosedPipe, l.Close())
		}
		l.left -= int64(len(p))
	}
	return l.Conn.Write(p)
}

func TestTransfer(t *testing.T) {
	t.Parallel()
	from, to := vfs.NewMem(), vfs.NewMem()
	want := sample(1)
	want.write(t, from, "/copy")
	database{"a.journal": "not the database's", "LOCK": ""}.write(t, from, "/copy")
	got := attempt(t, from, to, -1, nil, nil)
	if got.sent != nil || got.received != nil {
		t.Fatalf("sent: %v, received: %v", got.sent, got.received)
	}
	if !read(t, to, "/node/snapshot").equals(want) {
		t.Error("other files have arrived")
	}
	if h := got.passed; h == nil || h.Index != 9 || h.Term != 4 || string(h.Message) != "m" || h.Bytes() != got.bytes {
		t.Errorf("the header is %+v, and %d bytes were sent", h, got.bytes)
	}
}

// A snapshot that is cut off anywhere is not passed on, and the next attempt sends what is
// missing, of a database that has changed meanwhile.
func TestTransferThatWasCutOff(t *testing.T) {
	t.Parallel()
	for seed := range uint64(15) {
		from, to := vfs.NewMem(), vfs.NewMem()
		rng := rand.New(rand.NewPCG(seed, 1))
		want := sample(1)
		want.write(t, from, "/copy")
		var sums *Sums
		if seed%2 == 1 {
			sums = &Sums{}
		}
		for range 3 {
			got := attemptWith(t, sums, from, to, rng.Int64N(chunkBytes*3/2), nil, nil)
			if got.sent == nil || got.received == nil || got.passed != nil {
				t.Fatalf("seed %d: cut off: sent: %v, received: %v, passed on: %v", seed, got.sent, got.received, got.passed)
			}
		}
		kept := read(t, to, "/node/snapshot")
		changed := fmt.Sprintf("%06d.sst", 10+rng.IntN(6))
		if want[changed] != "" { // another file with the same name and size
			want[changed] = strings.Repeat("x", len(want[changed]))
		}
		want["000099.sst"] = "new"
		delete(want, fmt.Sprintf("%06d.sst", 10+rng.IntN(6)))
		if err := from.RemoveAll("/copy"); err != nil {
			t.Fatal(err)
		}
		want.write(t, from, "/copy")
		got := attemptWith(t, sums, from, to, -1, nil, nil)
		if got.sent != nil || got.received != nil || !read(t, to, "/node/snapshot").equals(want) {
			t.Fatalf("seed %d: sent: %v, received: %v, or other files", seed, got.sent, got.received)
		}
		least := got.passed.Bytes()
		for name, content := range want {
			if kept[name] == content {
				least -= int64(len(content))
			}
		}
		if got.bytes != least {
			t.Errorf("seed %d: %d bytes were sent again, want %d", seed, got.bytes, least)
		}
	}
}

// counted counts the bytes that are read of a file system's files.
type counted struct {
	vfs.FS
	read int64
}

func (c *counted) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := c.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return &countedFile{f, c}, nil
}

type countedFile struct {
	vfs.File
	of *counted
}

func (f *countedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.of.read += int64(n)
	return n, err
}

// After a snapshot that was cut off the sender reads only what it sends, as long as it remembers what it has sent.
func TestWhatWasSentIsNotReadAgain(t *testing.T) {
	t.Parallel()
	disk, to, sums := vfs.NewMem(), vfs.NewMem(), &Sums{}
	sample(1).write(t, disk, "/copy")
	if got := attemptWith(t, sums, disk, to, 3*chunkBytes, nil, nil); got.sent == nil {
		t.Fatal("the snapshot was not cut off")
	}
	from := &counted{FS: disk}
	got := attemptWith(t, sums, from, to, -1, nil, nil)
	if got.sent != nil || got.received != nil || !read(t, to, "/node/snapshot").equals(sample(1)) {
		t.Fatalf("sent: %v, received: %v, or other files", got.sent, got.received)
	}
	if from.read != got.bytes || got.bytes > sample(1).bytes()-2*chunkBytes {
		t.Errorf("%d bytes were read to send %d of %d", from.read, got.bytes, sample(1).bytes())
	}
}

// A node that has to read much before it answers may take longer than one that has to answer at once.
func TestPatienceWithANodeThatReads(t *testing.T) {
	t.Parallel()
	const patience, slow, much = time.Millisecond, 50 * time.Millisecond, 100 * readRate
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	l := newLink(here, patience)
	if _, err := l.await(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a node that does not answer: %v", err)
	}
	time.AfterFunc(slow, func() { _ = newLink(there, time.Minute).writeJSON(kindAnswer, answer{}) })
	if _, err := l.awaitReading(much); err != nil {
		t.Errorf("a node that reads: %v", err)
	}
	if l.patience != patience {
		t.Errorf("afterwards it waits for %v", l.patience)
	}
}

// What was changed on the way is not passed on.
func TestTransferThatWasChanged(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		from, to := vfs.NewMem(), vfs.NewMem()
		sample(1).write(t, from, "/copy")
		rng := rand.New(rand.NewPCG(seed, 1))
		at, seen := rng.IntN(4*chunkBytes), 0
		got := attempt(t, from, to, -1, func(b []byte) {
			if seen <= at && at < seen+len(b) {
				b[at-seen] ^= 1 << rng.IntN(8)
			}
			seen += len(b)
		}, func(r *Receiving) { r.Patience = time.Second }) // a frame that seems longer never ends
		if got.received == nil || got.passed != nil {
			t.Errorf("seed %d: received: %v, passed on: %v", seed, got.received, got.passed)
		}
	}
}

func TestReceiverRefuses(t *testing.T) {
	t.Parallel()
	no := errors.New("no room today")
	for what, change := range map[string]func(*Receiving){
		"the offer": func(r *Receiving) { r.Accept = func(Offer) error { return no } },
		"the size":  func(r *Receiving) { r.Room = func(int64) error { return no } },
		"what came": func(r *Receiving) { r.Pass = func(Header) error { return no } },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			from, to := vfs.NewMem(), vfs.NewMem()
			sample(1).write(t, from, "/copy")
			got := attempt(t, from, to, -1, nil, change)
			if !errors.Is(got.sent, ErrRefused) || !strings.Contains(got.sent.Error(), no.Error()) || !errors.Is(got.received, no) {
				t.Errorf("sent: %v, received: %v", got.sent, got.received)
			}
		})
	}
}

// Names that are not a database's are refused: they could be anywhere on the disk.
// What a connection announces takes no memory before its offer was accepted, up to the bound of an offer.
func TestAnnouncementBeforeTheOffer(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{kindOffer, kindAnswer, kindHeader, kindChunk} {
		for size, allowed := range map[uint32]bool{maxOfferBytes: true, maxOfferBytes + 1: false, maxHeaderBytes: false} {
			a, b := net.Pipe()
			received := make(chan error, 1)
			go func() { received <- Receive(b, Receiving{FS: vfs.NewMem(), Dir: "/node/snapshot"}) }()
			frame := make([]byte, frameHeader)
			binary.LittleEndian.PutUint32(frame[4:], size)
			frame[8] = byte(k)
			if _, err := a.Write(frame); err != nil {
				t.Fatal(err)
			}
			if allowed {
				_ = a.Close() // it waits for what was announced
			}
			if err := <-received; err == nil || strings.Contains(err.Error(), "is announced") == allowed {
				t.Errorf("kind %d with %d bytes: %v", k, size, err)
			}
			_ = a.Close()
		}
	}
}

func TestNamesOfFiles(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"000001.sst": true, "MANIFEST-000003": true, "marker.manifest.000001.MANIFEST-000003": true, "OPTIONS-000001": true,
		"LOCK": false, "ballast": false, "ballast-start": false, "cluster": false, "holdfast.sock": false, "0000000000000001.journal": false,
		"../000001.sst": false, "a/b.sst": false, `a\b.sst`: false, "": false, strings.Repeat("x", 300) + ".sst": false,
	} {
		if isDatabase(name) != want {
			t.Errorf("%q is a file of a database: %v", name, !want)
		}
	}
}

// failing is a file system whose operations that change names fail from some moment on, as if
// the process had ended.
type failing struct {
	vfs.FS
	left int
}

var errEnded = errors.New("the process has ended")

func (f *failing) step() error {
	if f.left--; f.left < 0 {
		return errEnded
	}
	return nil
}

func (f *failing) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.step(); err != nil {
		return nil, err
	}
	return f.FS.Create(name, c)
}

func (f *failing) Remove(name string) error {
	return errors.Join(f.step(), f.ifGoing(func() error { return f.FS.Remove(name) }))
}

func (f *failing) RemoveAll(name string) error {
	return errors.Join(f.step(), f.ifGoing(func() error { return f.FS.RemoveAll(name) }))
}

func (f *failing) Rename(from, to string) error {
	return errors.Join(f.step(), f.ifGoing(func() error { return f.FS.Rename(from, to) }))
}

func (f *failing) Link(from, to string) error {
	return errors.Join(f.step(), f.ifGoing(func() error { return f.FS.Link(from, to) }))
}

func (f *failing) OpenDir(name string) (vfs.File, error) {
	if err := f.step(); err != nil {
		return nil, err
	}
	return f.FS.OpenDir(name)
}

func (f *failing) ifGoing(do func() error) error {
	if f.left < 0 {
		return nil
	}
	return do()
}

// An installation that ends anywhere, by a power cut that loses some of what was not synced,
// leaves the old database, or one that Finish makes whole, even if that is interrupted as well.
func TestInstallationIsAllOrNothing(t *testing.T) {
	t.Parallel()
	before, after := database{}, database{}
	for seed, d := range []database{before, after} {
		d["MANIFEST-000001"], d["marker.manifest.000001.MANIFEST-000001"] = fmt.Sprint("manifest ", seed), ""
		for i := range 5 {
			d[fmt.Sprintf("%06d.sst", 10+i)] = fmt.Sprint("table of ", seed)
		}
		d[fmt.Sprintf("%06d.sst", 50+seed)] = "only here"
	}
	var olds, news int
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		disk := vfs.NewCrashableMem()
		before.write(t, disk, "/data")
		database{"ballast": "other", "0000000000000001.journal": "other"}.write(t, disk, "/data")
		after.write(t, disk, "/data/cluster/snapshot")
		crash := func() { disk = disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}) }

		err := Install(&failing{disk, rng.IntN(60)}, "/data", "/data/cluster")
		if err != nil && !errors.Is(err, errEnded) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		crash()
		for err != nil && rng.IntN(2) == 0 {
			if _, err := Finish(&failing{disk, rng.IntN(40)}, "/data", "/data/cluster"); err != nil && !errors.Is(err, errEnded) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			crash()
		}
		if _, err := Finish(disk, "/data", "/data/cluster"); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		switch got := read(t, disk, "/data"); {
		case got.equals(after):
			news++
		case got.equals(before) && err != nil:
			olds++
		default:
			t.Fatalf("seed %d: the database is neither the old one nor the new one", seed)
		}
		if _, err := disk.Stat("/data/ballast"); err != nil {
			t.Fatalf("seed %d: a file that is not the database's: %v", seed, err)
		}
		if left, err := exists(disk, "/data/cluster/snapshot"); left || err != nil {
			t.Fatalf("seed %d: what has arrived is still there (%v)", seed, err)
		}
	}
	if olds == 0 || news == 0 {
		t.Errorf("the old database was left %d times, the new one %d times", olds, news)
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, c := net.Pipe()
		go func() {
			go func() { _, _ = io.Copy(io.Discard, a) }()
			_, _ = a.Write(b)
			_ = a.Close()
		}()
		if err := Receive(c, Receiving{
			FS: vfs.NewMem(), Dir: "/snapshot", Accept: func(Offer) error { return nil }, Room: func(int64) error { return nil },
			Received: func(int64) {}, Pass: func(Header) error { return nil },
		}); err == nil {
			t.Error("a snapshot without files was taken")
		}
		_ = c.Close()
	})
}
