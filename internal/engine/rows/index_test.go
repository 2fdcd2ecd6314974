package rows

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// The row of the index that messages share, as bytes.
func TestEncodingOfASharedIndexRowIsPinned(t *testing.T) {
	t.Parallel()
	j, err := journal.Open(journal.Options{Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	a := j.Begin()
	WriteSharedIndex(a, 258, hlc.Timestamp{Wall: 1, Counter: 2, Node: "n"}, [][]byte{AppendMemoRow(nil, []byte("key"), []byte("m")), AppendMemoRow(nil, []byte("k"), []byte("other"))})
	a.Set(AppendIndexRow(nil, 259, AppendMemoRow(nil, []byte("k"), []byte("single"))), nil)
	a.Set([]byte(IndexPrefix+"\xff"), nil)
	a.End(nil)
	j.WaitDurable()
	all, more, err := ReadIndex(j, []byte(IndexPrefix), []byte(AfterIndex), 100, 1000)
	if err != nil || more || len(all) != 3 {
		t.Fatalf("%+v, %v, %v", all, more, err)
	}
	const row = "x|\x00\x00\x00\x00\x00\x00\x01\x02\x00\x01\x02\x01n"
	if x := all[0]; string(x.Row) != row || x.DiskMs != 258 || !x.Shared || x.Unreadable != nil || !slices.EqualFunc(x.Names, []string{"\x03keym", "\x01kother"}, func(b []byte, s string) bool { return string(b) == s }) {
		t.Errorf("%q, %+v", x.Row, x)
	}
	if x := all[1]; x.DiskMs != 259 || x.Shared || len(x.Names) != 1 {
		t.Errorf("%+v", x)
	}
	if all[2].Unreadable == nil {
		t.Errorf("%+v", all[2])
	}
	if value, _, _ := j.Probe(nil, []byte(row)); string(value) != "\x05\x03keym\x07\x01kother" {
		t.Errorf("its value is %q", value)
	}
	for _, bound := range []struct{ messages, size, want int }{{2, 1000, 1}, {3, 1000, 2}, {100, 1, 1}, {100, 35, 2}} {
		if some, more, err := ReadIndex(j, []byte(IndexPrefix), []byte(AfterIndex), bound.messages, bound.size); len(some) != bound.want || !more || err != nil {
			t.Errorf("up to %d messages and %d bytes: %d rows, more %v, %v", bound.messages, bound.size, len(some), more, err)
		}
	}
}

// A check holds messages that share a row of the index against it, and a repair gives each a row of
// its own.
func TestCheckAndRepairOfASharedIndexRow(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	var j *journal.Journal
	open := func() {
		t.Helper()
		var err error
		if j, err = journal.Open(journal.Options{Dir: "data", FS: fs}); err != nil {
			t.Fatal(err)
		}
	}
	open()
	defer func() { _ = j.Close() }()
	version := hlc.Timestamp{Wall: 1, Counter: 2, Node: "n"}
	memo := Memo{What: &statestore.Memo{Version: version, Done: true, DeadlineMs: 258}, DiskMs: 258, Shared: true}
	memos := [][]byte{AppendMemoRow(nil, []byte("k"), []byte("m")), AppendMemoRow(nil, []byte("k"), []byte("n"))}
	stale := AppendMemoRow(nil, []byte("k"), []byte("gone")) // forgotten since, or it has another row
	problems := func() (all []string) {
		t.Helper()
		if err := j.Close(); err != nil { // the meta record is read when it is opened
			t.Fatal(err)
		}
		open()
		if _, err := Check(j, func(what string) { all = append(all, what) }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	j.SetMeta(func(dst []byte, _ journal.Seq) []byte {
		r := statestore.MemoChange(nil, memo.What, NameSize(memos[0]))
		return AppendMeta(dst, Meta{Last: version, Remembered: statestore.Remembered{Messages: 2, Bytes: 2 * r.Bytes}, Counted: true})
	})
	a := j.Begin()
	for _, row := range memos {
		WriteMemo(a, row, &memo, memo.DiskMs, 0)
	}
	WriteSharedIndex(a, memo.DiskMs, version, append(memos[:2:2], stale))
	a.End(nil)
	if got := problems(); len(got) > 0 {
		t.Errorf("problems %q", got)
	}
	a = j.Begin()
	WriteSharedIndex(a, memo.DiskMs, version, memos[:1])
	a.End(nil)
	if got := problems(); len(got) != 1 || got[0] != "2 messages are remembered, and there are deadlines for 1" {
		t.Errorf("problems %q", got)
	}
	if err := Repair(j, func(what string) { t.Error(what) }); err != nil {
		t.Fatal(err)
	}
	if got := problems(); len(got) > 0 {
		t.Errorf("after the repair: %q", got)
	}
	all, _, err := ReadIndex(j, []byte(IndexPrefix), []byte(AfterIndex), 100, 1000)
	if err != nil || len(all) != 2 || all[0].Shared || all[1].Shared {
		t.Errorf("the index has %+v, %v", all, err)
	}
}

func FuzzDecodeIndex(f *testing.F) {
	const head = "x|\x00\x00\x00\x00\x00\x00\x01\x02"
	f.Add([]byte(head+"\x03keymessage"), []byte{})
	f.Add([]byte(head+"\x00\x01\x02\x01n"), []byte("\x05\x03keym\x07\x01kother"))
	f.Add([]byte(head+"\x00"), []byte("\x05\x03ke"))
	f.Add([]byte(head), []byte("\xff"))
	f.Fuzz(func(t *testing.T, row, value []byte) {
		x, err := DecodeIndex(row, value)
		if err != nil {
			return
		}
		for _, name := range x.Names {
			if _, err := KeyOf(name); err != nil {
				t.Fatalf("%q %q: the key of %q: %v", row, value, name, err)
			}
		}
		if !x.Shared && string(AppendIndexRow(nil, x.DiskMs, append([]byte(MemoPrefix), x.Names[0]...))) != string(row) {
			t.Fatalf("%q is %+v", row, x)
		}
	})
}
