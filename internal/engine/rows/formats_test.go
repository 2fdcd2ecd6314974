package rows

import (
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Each kind of row, in each form that was ever written, has a file with the key and the value of
// one. The program reads them as they were meant, and writes the newest form as it always has.
func TestFormsOfRows(t *testing.T) {
	t.Parallel()
	version, token := hlc.Timestamp{Wall: 1_700_000_000_123, Counter: 300, Node: "StateStore"}, hlc.Timestamp{Wall: 1_700_000_000_001, Counter: 2, Node: "lock"}
	const deadline, run = 1_700_000_060_000, 1_700_000_000_000_000
	plain := statestore.Entry{Value: []byte("v"), Version: version}
	whole := statestore.Entry{Value: []byte("21.5"), Version: version, Token: token, DeadlineMs: deadline}
	memoRow := AppendMemoRow(nil, []byte("counter/1"), []byte("message-1"))
	open := Memo{What: &statestore.Memo{Version: version, DeadlineMs: deadline, State: []byte("before"), Context: []byte("context")}, DiskMs: deadline, Shared: true}
	done := Memo{What: &statestore.Memo{Done: true, Version: version, DeadlineMs: deadline}, DiskMs: deadline}
	stepped := Memo{What: &statestore.Memo{Done: true, Version: version, DeadlineMs: deadline - 5000}, DiskMs: deadline}
	remembered := statestore.Remembered{Messages: 3, Bytes: 400}
	sharedKey, sharedValue := sharedIndexRow(t, deadline, version, [][]byte{memoRow, AppendMemoRow(nil, []byte("k"), []byte("other"))})

	entry := func(_, b []byte) (any, error) {
		var e statestore.Entry
		err := DecodeEntry(b, map[string]string{}, &e)
		return e, err
	}
	memo := func(_, b []byte) (any, error) { return DecodeMemo(b, run) }
	index := func(key, b []byte) (any, error) { return DecodeIndex(key, b) }
	meta := func(_, b []byte) (any, error) { return DecodeMeta(b) }
	known := map[string]bool{}
	for _, c := range []struct {
		name       string
		key, value []byte // as the program writes them; both nil: it writes this form no more
		read       func(key, value []byte) (any, error)
		want       any
	}{
		{"key", []byte(KeyPrefix + "press/7"), AppendEntry(nil, &plain, 0), entry, plain},
		{"key with a token and a deadline", []byte(KeyPrefix + "press/7"), AppendEntry(nil, &whole, deadline), entry, whole},
		{"remembered", memoRow, AppendMemo(nil, &open, run), memo, open},
		{"remembered and done", memoRow, AppendMemo(nil, &done, run), memo, done},
		{"remembered before the clock was set", memoRow, AppendMemo(nil, &stepped, run), memo, stepped},
		{"index", AppendIndexRow(nil, deadline, memoRow), []byte{}, index, Index{DiskMs: deadline, Names: [][]byte{memoRow[len(MemoPrefix):]}}},
		{"index of several", sharedKey, sharedValue, index, Index{DiskMs: deadline, Names: [][]byte{memoRow[len(MemoPrefix):], []byte("\x01kother")}, Shared: true}},
		{"meta", journal.MetaKey, AppendMeta(nil, Meta{Last: version, Remembered: remembered}), meta, Meta{Last: version, Remembered: remembered, Counted: true}},
		{"meta of format 2", nil, nil, meta, Meta{Last: version, Remembered: remembered, Counted: true}},
		{"meta of format 1", nil, nil, meta, Meta{Last: version}},
	} {
		var file []byte
		if c.value == nil {
			file = goldenfile.Read(t, c.name)
		} else {
			file = goldenfile.Check(t, c.name, append(append(binary.AppendUvarint(nil, uint64(len(c.key))), c.key...), c.value...))
		}
		known[strings.ReplaceAll(c.name, " ", "-")] = true
		n, behind, err := readUvarint(file)
		if err != nil || n > uint64(len(behind)) {
			t.Fatalf("%s: the file has no key", c.name)
		}
		if got, err := c.read(behind[:n], behind[n:]); err != nil || !reflect.DeepEqual(got, c.want) {
			goldenfile.Differs(t, c.name, []any{got, err}, c.want)
		}
	}
	for _, name := range goldenfile.Names(t) {
		if !known[name] {
			t.Errorf("no row is compared with the file %s", name)
		}
	}
}

// sharedIndexRow is the row that WriteSharedIndex writes.
func sharedIndexRow(t *testing.T, diskMs int64, first hlc.Timestamp, memoRows [][]byte) (key, value []byte) {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	a := j.Begin()
	WriteSharedIndex(a, diskMs, first, memoRows)
	a.End(nil)
	j.WaitDurable()
	if err := j.Iterate([]byte(IndexPrefix), []byte(AfterIndex), func(k, v []byte) bool {
		key, value = slices.Clone(k), slices.Clone(v)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return key, value
}
