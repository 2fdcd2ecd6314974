package rows

import (
	"encoding/binary"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// The meta record is
//
//	format      1 byte, 3
//	messages    how many are remembered (uvarint)
//	bytes       of them (statestore.Memo.Size; uvarint)
//	version     the text of the last version issued: the rest
//
// Format 2 says that no messages share a row of the index, and format 1 has the version only.
// Without the two numbers a start would have to read every
// remembered message, of which there may be hundreds of millions.
const (
	metaFormat        = 3
	metaBeforeSharing = 2
	metaWithoutCounts = 1
)

// Meta is what the meta record says.
type Meta struct {
	Last       hlc.Timestamp         // the last version issued; zero: none was
	Remembered statestore.Remembered // if Counted
	Counted    bool                  // false: the record is of an earlier format, and has no counts
}

// AppendMeta appends the record to dst; nothing if no version was issued.
func AppendMeta(dst []byte, m Meta) []byte {
	if m.Last.IsZero() {
		return dst
	}
	dst = append(dst, metaFormat)
	dst = binary.AppendUvarint(dst, uint64(max(0, m.Remembered.Messages)))
	dst = binary.AppendUvarint(dst, uint64(max(0, m.Remembered.Bytes)))
	return m.Last.Append(dst)
}

// DecodeMeta reads the record; b is empty if there is none.
func DecodeMeta(b []byte) (m Meta, err error) {
	if len(b) == 0 {
		return Meta{}, nil
	}
	rest := b[1:]
	switch b[0] {
	case metaWithoutCounts:
	case metaFormat, metaBeforeSharing:
		m.Counted = true
		for _, n := range []*int64{&m.Remembered.Messages, &m.Remembered.Bytes} {
			var v uint64
			if v, rest, err = readUvarint(rest); err != nil || int64(v) < 0 {
				return Meta{}, fmt.Errorf("the record of the last version, %q, cannot be read: %w", b, errTruncated)
			}
			*n = int64(v)
		}
	default:
		return Meta{}, fmt.Errorf("the record of the last version has format %d, which is not known to this version of the program", b[0])
	}
	if m.Last, err = hlc.Parse(string(rest)); err != nil {
		return Meta{}, fmt.Errorf("the record of the last version, %q, cannot be read: %w", rest, err)
	}
	return m, nil
}

// CountRemembered reads every remembered message. It skips those that cannot be read, which
// Check reports.
func CountRemembered(j *journal.Journal) (r statestore.Remembered, err error) {
	err = j.IterateOnce([]byte(MemoPrefix), []byte(AfterMemos), func(row, value []byte) bool {
		if m, err := DecodeMemo(value, 0); err == nil {
			r.Add(statestore.MemoChange(nil, m.What, NameSize(row)))
		}
		return true
	})
	if err != nil {
		return r, fmt.Errorf("counting remembered messages: %w", err)
	}
	return r, nil
}

// NameSize is how many bytes key and message ID have together in a memo's row.
func NameSize(memoRow []byte) int {
	_, name, err := readUvarint(memoRow[len(MemoPrefix):])
	if err != nil {
		return 0
	}
	return len(name)
}

// Tally has what is remembered as of each batch of the journal, for the meta record that is
// written in it. Differences are added to the batch that fills, while the batch before it may
// still wait for its record.
type Tally struct {
	sealed  statestore.Remembered    // the committer's: as of the last batch whose record was made
	filling [2]statestore.Remembered // guarded by the journal's Append, then the committer's: differences, by batch number modulo 2
}

// NewTally begins with what was read at the start.
func NewTally(r statestore.Remembered) Tally { return Tally{sealed: r} }

// Add notes a difference that the rows of a batch make, between the Begin and the End of the
// Append that has them.
func (t *Tally) Add(batch journal.Seq, d statestore.Remembered) { t.filling[batch%2].Add(d) }

// Until adds up to a batch that was closed to appends, and returns the sums. The committer
// calls it for each batch, in their order.
func (t *Tally) Until(batch journal.Seq) statestore.Remembered {
	d := &t.filling[batch%2]
	t.sealed.Add(*d)
	*d = statestore.Remembered{}
	return t.sealed
}
