package rows

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

func TestEncodingOfMetaIsPinned(t *testing.T) {
	t.Parallel()
	last := hlc.Timestamp{Wall: 7, Counter: 2, Node: "n"}
	text := string(last.Append(nil))
	for _, tc := range []struct {
		m    Meta
		want string
	}{
		{Meta{}, ""},
		{Meta{Last: last, Counted: true}, "\x03\x00\x00" + text},
		{Meta{Last: last, Remembered: statestore.Remembered{Messages: 3, Bytes: 300}, Counted: true}, "\x03\x03\xac\x02" + text},
	} {
		b := AppendMeta(nil, tc.m)
		if string(b) != tc.want {
			t.Errorf("%+v is %q, want %q", tc.m, b, tc.want)
		}
		if got, err := DecodeMeta(b); err != nil || got != tc.m {
			t.Errorf("%q is %+v, %v; want %+v", b, got, err, tc.m)
		}
	}
	if got, err := DecodeMeta([]byte("\x01" + text)); err != nil || got != (Meta{Last: last}) {
		t.Errorf("a record of format 1: %+v, %v", got, err)
	}
	if got, err := DecodeMeta([]byte("\x02\x03\xac\x02" + text)); err != nil || got != (Meta{Last: last, Remembered: statestore.Remembered{Messages: 3, Bytes: 300}, Counted: true}) {
		t.Errorf("a record of format 2: %+v, %v", got, err)
	}
	const negative = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
	for name, b := range map[string]string{
		"a later format": "\x04" + text, "no version": "\x01x", "no counts": "\x03", "one count": "\x03\x01",
		"counts and no version": "\x03\x01\x01", "too many messages": "\x03" + negative + "\x01" + text, "too many bytes": "\x03\x01" + negative + text,
	} {
		if m, err := DecodeMeta([]byte(b)); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add([]byte("\x027:2:n"))
	f.Add([]byte("\x02\x03\xac\x027:2:n"))
	f.Add([]byte("\x03\x03\xac\x027:2:n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMeta(b)
		if err != nil || !m.Counted {
			return
		}
		if again, err := DecodeMeta(AppendMeta(nil, m)); err != nil || again != m {
			t.Fatalf("%q: %+v, written again %+v, %v", b, m, again, err)
		}
	})
}

// The sums of a batch have what was appended to it and before it, and nothing of the batch
// that fills meanwhile.
func TestTallyIsAsOfEachBatch(t *testing.T) {
	t.Parallel()
	one := statestore.Remembered{Messages: 1, Bytes: 100}
	tally := NewTally(statestore.Remembered{Messages: 5, Bytes: 500})
	tally.Add(3, one)
	tally.Add(3, one)
	tally.Add(4, statestore.Remembered{Messages: -1, Bytes: -50})
	if got, want := tally.Until(3), (statestore.Remembered{Messages: 7, Bytes: 700}); got != want {
		t.Errorf("until batch 3: %+v, want %+v", got, want)
	}
	tally.Add(5, one)
	if got, want := tally.Until(4), (statestore.Remembered{Messages: 6, Bytes: 650}); got != want {
		t.Errorf("until batch 4: %+v, want %+v", got, want)
	}
	if got, want := tally.Until(5), (statestore.Remembered{Messages: 7, Bytes: 750}); got != want {
		t.Errorf("until batch 5: %+v, want %+v", got, want)
	}
}

// A message counts its key and its ID twice, the value before, its context, and 64 bytes,
// which is what its two rows have, and a little more.
func TestSizeOfAMemoIsThatOfItsRows(t *testing.T) {
	t.Parallel()
	key, id := []byte("range/0123456789"), []byte("message")
	for _, what := range []*statestore.Memo{
		{Version: hlc.Timestamp{Wall: run, Counter: 1, Node: "StateStore"}, Done: true, DeadlineMs: run},
		{Version: hlc.Timestamp{Wall: run, Counter: 1, Node: "StateStore"}, State: make([]byte, 1000), Context: make([]byte, 50), DeadlineMs: run},
	} {
		row := AppendMemoRow(nil, key, id)
		m := Memo{What: what, DiskMs: run}
		rows := len(row) + MemoSize(&m, run) + len(AppendIndexRow(nil, run, row))
		size := what.Size(NameSize(row))
		if want := 2*len("range/0123456789message") + len(what.State) + len(what.Context) + 64; size != int64(want) {
			t.Errorf("it counts %d bytes, want %d", size, want)
		}
		if size < int64(rows) || size > int64(rows)+32 {
			t.Errorf("it counts %d bytes, and its rows have %d", size, rows)
		}
	}
}
