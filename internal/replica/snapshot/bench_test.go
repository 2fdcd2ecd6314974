package snapshot

import (
	"crypto/rand"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// What sender and receiver together take for a table of 64 MiB; -cpuprofile tells the one from the other.
func BenchmarkTransfer(b *testing.B) {
	const size = 64 << 20
	from, to := b.TempDir(), b.TempDir()
	content := make([]byte, size)
	_, _ = rand.Read(content) // does not fail
	f, err := vfs.Default.Create(filepath.Join(from, "000001.sst"), vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(content)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	b.SetBytes(size)
	for b.Loop() {
		near, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		far, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		received := make(chan error)
		go func() {
			received <- errors.Join(vfs.Default.RemoveAll(to), Receive(far, Receiving{
				FS: vfs.Default, Dir: to, Accept: func(Offer) error { return nil }, Room: func(int64) error { return nil }, Received: func(int64) {}, Pass: func(Header) error { return nil },
			}))
		}()
		err = Send(b.Context(), near, Sending{FS: vfs.Default, Make: func() (string, Header, error) { return from, Header{}, nil }})
		if err := errors.Join(err, <-received, near.Close(), far.Close()); err != nil {
			b.Fatal(err)
		}
	}
}
