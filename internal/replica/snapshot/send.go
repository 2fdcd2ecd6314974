package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Patience is how long one side waits for the other by default: for a chunk to be taken, or for
// an answer.
const Patience = 30 * time.Second

// readRate is how many bytes in a second the other node reads at least, while the sender waits for its answer: of
// what it has from an earlier attempt, and of all tables when they have arrived.
const readRate = 16 << 20

// hurry times Sending.Rate is the rate while it is urgent.
const hurry = 4

// Sending is what Send needs.
type Sending struct {
	FS       vfs.FS
	Offer    Offer
	Patience time.Duration // 0: the default
	// Make makes a copy of the database in a directory, and returns it with its header, whose
	// files Send sets. It is called when the other node is ready. Send does not remove it.
	Make func() (dir string, h Header, err error)
	// Rate bounds the bytes of files that are read and sent in a second, so that sending leaves
	// the leader's processors, disk and network to its clients; 0: there is no bound.
	Rate int64
	// Urgent says whether to send at hurry times Rate, when so many of all bytes are sent or need not be;
	// nil: never.
	Urgent func(sent, all int64) bool
	// Sums remembers what this call reads for the next one; nil: nothing does.
	Sums *Sums
	// Sent is called with the bytes that were sent since it was last called.
	Sent func(bytes int64)
}

// Send sends a snapshot, and returns when the other node has it on the disk and has passed the
// header's message on. It fails with ErrRefused, ctx's error, or with what Make, the disk or the
// network say. It does not close the connection.
func Send(ctx context.Context, conn net.Conn, s Sending) error {
	if s.Patience == 0 {
		s.Patience = Patience
	}
	if s.Sums == nil {
		s.Sums = &Sums{}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	err := s.send(ctx, newLink(conn, s.Patience))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (s *Sending) send(ctx context.Context, l *link) error {
	if err := l.writeJSON(kindOffer, s.Offer); err != nil {
		return err
	}
	ready, err := l.await()
	if err != nil {
		return err
	}
	dir, h, err := s.Make()
	if err != nil {
		return fmt.Errorf("the copy of the database: %w", err)
	}
	if h.Files, err = listFiles(s.FS, dir); err != nil {
		return err
	}
	if slices.Contains(ready.Sums, CRC) {
		h.Sums = CRC
	}
	s.Sums.begin(h.Sums, h.Files)
	if err := l.writeJSON(kindHeader, h); err != nil {
		return err
	}
	a, err := l.awaitReading(h.Bytes())
	if err != nil {
		return err
	}
	chunk, pace := make([]byte, chunkBytes), pacer{ctx: ctx, rate: s.Rate, urgent: s.Urgent, all: h.Bytes()}
	for _, f := range h.Files {
		if err := s.sendFile(l, &pace, dir, f, a.Have, chunk); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	_, err = l.awaitReading(h.Bytes())
	return err
}

// awaitReading is await of a node that reads so many bytes at the most before it answers.
func (l *link) awaitReading(bytes int64) (answer, error) {
	usual := l.patience
	defer func() { l.patience = usual }()
	l.patience += time.Duration(bytes/readRate) * time.Second
	return l.await()
}

// sendFile sends a file, or that the receiver is to keep the one that it has.
func (s *Sending) sendFile(l *link, pace *pacer, dir string, file File, have []File, chunk []byte) error {
	if i := slices.IndexFunc(have, func(h File) bool { return h.Name == file.Name && h.Size == file.Size }); i >= 0 {
		sum, err := s.Sums.of(s.FS, s.FS.PathJoin(dir, file.Name), file.Name)
		if err != nil {
			return err
		}
		if bytes.Equal(sum, have[i].Sum) {
			pace.done += file.Size
			return l.write(kindKeep, nil)
		}
	}
	f, err := s.FS.Open(s.FS.PathJoin(dir, file.Name), vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer f.Close()
	h := s.Sums.kind.new()
	for rest := file.Size; rest > 0; {
		b := chunk[:min(int64(len(chunk)), rest)]
		if _, err := io.ReadFull(f, b); err != nil {
			return err
		}
		_, _ = h.Write(b)
		if err := l.write(kindChunk, b); err != nil {
			return err
		}
		rest -= int64(len(b))
		if err := pace.sent(int64(len(b))); err != nil {
			return err
		}
		if s.Sent != nil {
			s.Sent(int64(len(b)))
		}
	}
	sum := h.Sum(nil)
	s.Sums.note(f, file.Name, sum)
	return l.write(kindEnd, sum)
}

// pacer waits so that no more than rate bytes are sent in a second, or hurry times as many while it is urgent.
type pacer struct {
	ctx       context.Context
	rate      int64     // 0: it does not wait
	due       time.Time // when the next bytes may be sent; zero: nothing was sent yet
	urgent    func(sent, all int64) bool
	done, all int64
}

// sent waits until bytes more may be sent, after so many were. It fails with the context's error.
func (p *pacer) sent(bytes int64) error {
	if p.rate <= 0 {
		return nil
	}
	if now := time.Now(); p.due.Before(now) { // a receiver that was slow is not sent more for it later
		p.due = now
	}
	rate := float64(p.rate)
	if p.done += bytes; p.urgent != nil && p.urgent(p.done, p.all) {
		rate *= hurry
	}
	p.due = p.due.Add(time.Duration(float64(bytes) / rate * float64(time.Second)))
	wait := time.NewTimer(time.Until(p.due))
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// listFiles lists the database in a directory.
func listFiles(fsys vfs.FS, dir string) (files []File, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		if !isDatabase(name) {
			continue
		}
		info, err := fsys.Stat(fsys.PathJoin(dir, name))
		if err != nil {
			return nil, err
		}
		files = append(files, File{Name: name, Size: info.Size()})
	}
	return files, nil
}

// isDatabase says whether a file of a data directory is one of the database.
func isDatabase(name string) bool {
	if strings.ContainsAny(name, "/\\:") || len(name) > 255 {
		return false
	}
	for _, prefix := range []string{"MANIFEST-", "OPTIONS-", "marker.", "CURRENT", "temporary."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	for _, suffix := range []string{".sst", ".blob", ".log"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}
