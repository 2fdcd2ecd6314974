package rows

import (
	"bytes"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

func drawStamp(t *rapid.T, label string) hlc.Timestamp {
	return hlc.Timestamp{
		Wall:    rapid.Uint64().Draw(t, label+" wall"),
		Counter: rapid.Uint64().Draw(t, label+" counter"),
		Node:    rapid.StringMatching(`[^:]{1,20}`).Draw(t, label+" node"),
	}
}

func TestEntriesSurviveTheDisk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		entry := &statestore.Entry{
			Value:      rapid.SliceOf(rapid.Byte()).Draw(t, "value"),
			Version:    drawStamp(t, "version"),
			DeadlineMs: rapid.Int64Range(0, math.MaxInt64).Draw(t, "deadline"),
		}
		if rapid.Bool().Draw(t, "fenced") {
			entry.Token = drawStamp(t, "token")
		}
		b := AppendEntry(nil, entry, entry.DeadlineMs)
		if len(b) != EntrySize(entry, entry.DeadlineMs) {
			t.Fatalf("encoded in %d bytes, announced %d", len(b), EntrySize(entry, entry.DeadlineMs))
		}
		var got statestore.Entry
		if err := DecodeEntry(b, map[string]string{}, &got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Value, entry.Value) || got.Version != entry.Version || got.Token != entry.Token || got.DeadlineMs != entry.DeadlineMs {
			t.Fatalf("%+v came back as %+v", entry, got)
		}
	})
}

func TestEncodingIsPinned(t *testing.T) {
	t.Parallel()
	entry := &statestore.Entry{
		Value:   []byte("v"),
		Version: hlc.Timestamp{Wall: 300, Counter: 1, Node: "S"},
		Token:   hlc.Timestamp{Wall: 2, Counter: 3, Node: "ab"},
	}
	want := []byte{1, 3, 0xAC, 2, 1, 1, 'S', 2, 3, 2, 'a', 'b', 5, 'v'}
	if got := AppendEntry(nil, entry, 5); !bytes.Equal(got, want) {
		t.Errorf("%v, want %v: directories in the field hold the old bytes", got, want)
	}
}

func TestBadRecordsAreRefused(t *testing.T) {
	t.Parallel()
	for name, b := range map[string][]byte{
		"empty":                 {},
		"only a format":         {1},
		"a later format":        {2, 0, 1, 1, 1, 'S'},
		"an unknown flag":       {1, 4, 1, 1, 1, 'S'},
		"no version":            {1, 0},
		"no counter":            {1, 0, 1},
		"no node":               {1, 0, 1, 1, 0},
		"a node cut short":      {1, 0, 1, 1, 2, 'S'},
		"a node of 2^63 bytes":  {1, 0, 1, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F},
		"no token":              {1, 1, 1, 1, 1, 'S'},
		"no deadline":           {1, 2, 1, 1, 1, 'S'},
		"a deadline of 0":       {1, 2, 1, 1, 1, 'S', 0},
		"a deadline beyond all": {1, 2, 1, 1, 1, 'S', 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1},
	} {
		var e statestore.Entry
		if err := DecodeEntry(b, map[string]string{}, &e); err == nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte{1, 3, 0xAC, 2, 1, 1, 'S', 2, 3, 2, 'a', 'b', 5, 'v'})
	f.Add([]byte{1, 0, 1, 1, 1, 'S'})
	f.Fuzz(func(t *testing.T, b []byte) {
		var entry, again statestore.Entry
		if DecodeEntry(b, map[string]string{}, &entry) != nil {
			return
		}
		err := DecodeEntry(AppendEntry(nil, &entry, entry.DeadlineMs), map[string]string{}, &again)
		if err != nil || !bytes.Equal(again.Value, entry.Value) || again.Version != entry.Version || again.Token != entry.Token || again.DeadlineMs != entry.DeadlineMs {
			t.Errorf("%+v came back as %+v, %v", entry, again, err)
		}
	})
}
