package rows

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

func drawMemo(t *rapid.T) *Memo {
	orNil := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Just([]byte(nil)))
	deadline := rapid.Int64Range(1, 1<<62)
	m := &Memo{What: &statestore.Memo{
		Version: drawStamp(t, "version"), Done: rapid.Bool().Draw(t, "done"),
		State: orNil.Draw(t, "state"), Context: orNil.Draw(t, "context"), DeadlineMs: deadline.Draw(t, "deadline"),
	}}
	m.DiskMs = rapid.OneOf(rapid.Just(m.What.DeadlineMs), deadline).Draw(t, "deadline on disk")
	return m
}

const run = 1_700_000_000_000 // of the server

func TestMessagesSurviveTheDisk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := drawMemo(t)
		b := AppendMemo(nil, want, run)
		if len(b) != MemoSize(want, run) {
			t.Fatalf("%d bytes were announced, %d were written", MemoSize(want, run), len(b))
		}
		got, err := DecodeMemo(b, run)
		if err != nil || got.DiskMs != want.DiskMs || fmt.Sprintf("%#v", got.What) != fmt.Sprintf("%#v", want.What) {
			t.Fatalf("%#v, %v; want %#v", got.What, err, want.What)
		}
		later, err := DecodeMemo(b, run+1) // another run
		if err != nil || later.What.DeadlineMs != want.DiskMs {
			t.Fatalf("in the next run the deadline is %d, %v; want %d", later.What.DeadlineMs, err, want.DiskMs)
		}
		for n := range b { // whatever is cut off: no panic
			_, _ = DecodeMemo(b[:n], run)
		}
	})
}

func TestEncodingOfMessagesIsPinned(t *testing.T) {
	t.Parallel()
	what := &statestore.Memo{Version: hlc.Timestamp{Wall: 1, Counter: 2, Node: "n"}, State: []byte("s"), Context: []byte("c"), DeadlineMs: 5}
	for _, tc := range []struct {
		m    Memo
		want string
	}{
		{Memo{What: what, DiskMs: 5}, "\x01\x06\x01\x02\x01n\x05\x01sc"},
		{Memo{What: what, DiskMs: 7}, "\x01\x0e\x01\x02\x01n\x07\x2a\x04\x01sc"},
		{Memo{What: &statestore.Memo{Version: what.Version, Done: true, DeadlineMs: 5}, DiskMs: 5}, "\x01\x01\x01\x02\x01n\x05"},
		{Memo{What: &statestore.Memo{Version: what.Version, Done: true, DeadlineMs: 5}, DiskMs: 5, Shared: true}, "\x01\x11\x01\x02\x01n\x05"},
	} {
		if got := AppendMemo(nil, &tc.m, 42); string(got) != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
	row := AppendMemoRow(nil, []byte("key"), []byte("message"))
	if string(row) != "r|\x03keymessage" {
		t.Errorf("%q", row)
	}
	index := AppendIndexRow(nil, 258, row)
	if string(index) != "x|\x00\x00\x00\x00\x00\x00\x01\x02\x03keymessage" {
		t.Errorf("%q", index)
	}
	x, err := DecodeIndex(index, nil)
	if err != nil || x.DiskMs != 258 || x.Shared || len(x.Names) != 1 || string(x.Names[0]) != "\x03keymessage" {
		t.Errorf("%+v, %v", x, err)
	}
	if key, err := KeyOf(x.Names[0]); err != nil || string(key) != "key" {
		t.Errorf("%q, %v", key, err)
	}
}

func FuzzDecodeMemo(f *testing.F) {
	f.Add([]byte("\x01\x06\x01\x02\x01n\x05\x01sc"))
	f.Add([]byte("\x01\x0e\x01\x02\x01n\x07\x2a\x04\x01sc"))
	f.Add([]byte("\x01\x01\x01\x02\x01n\x05"))
	f.Add([]byte("\x01\x11\x01\x02\x01n\x05"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMemo(b, 42)
		if err != nil {
			return
		}
		again, err := DecodeMemo(AppendMemo(nil, &m, 42), 42)
		if err != nil || again.DiskMs != m.DiskMs || again.Shared != m.Shared || fmt.Sprintf("%#v", again.What) != fmt.Sprintf("%#v", m.What) {
			t.Fatalf("%q: %#v, written again %#v, %v", b, m.What, again, err)
		}
	})
}

// What a remembered message takes on disk, before compression, with a key of 16 bytes, a
// CloudEvents identity of 50, a state of 64 and 100 bytes of captured values and
// digests: as long as it may be replayed, and after DONE.
func BenchmarkRememberedBytes(b *testing.B) {
	key, id := []byte("range/0123456789"), []byte(fmt.Sprintf("event:6:%-42s", "shots"))
	version := hlc.Timestamp{Wall: 1_795_000_000_000, Counter: 1, Node: "StateStore"}
	for name, what := range map[string]*statestore.Memo{
		"stored": {Version: version, State: make([]byte, 64), Context: make([]byte, 100)},
		"done":   {Version: version, Done: true},
	} {
		b.Run(name, func(b *testing.B) {
			var bytes int
			for b.Loop() {
				row := AppendMemoRow(nil, key, id)
				value := AppendMemo(nil, &Memo{What: what, DiskMs: 1_795_000_000_000}, 1)
				bytes = len(row) + len(value) + len(AppendIndexRow(nil, 1_795_000_000_000, row))
			}
			b.ReportMetric(float64(bytes), "bytes/message")
		})
	}
}
