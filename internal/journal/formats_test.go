package journal

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
)

// A batch of rows is in the log, and in an entry of a cluster's log, as Pebble encodes it. A file has
// one with all that a batch may have: a newer Pebble must read and write the same.
func TestFormOfABatch(t *testing.T) {
	t.Parallel()
	b := new(pebble.Batch)
	for _, err := range []error{
		b.Set([]byte("k|press"), []byte("21.5"), nil), b.Set([]byte("x|empty"), nil, nil), b.Delete([]byte("q|gone"), nil), b.DeleteRange([]byte("u|1"), []byte("u|2"), nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	op := b.SetDeferred(3, 5)
	copy(op.Key, "t|a")
	copy(op.Value, "later")
	if err := op.Finish(); err != nil {
		t.Fatal(err)
	}
	rows := goldenfile.Check(t, "batch", rowsOf(b))
	want := []struct {
		kind       pebble.InternalKeyKind
		key, value string
	}{
		{pebble.InternalKeyKindSet, "k|press", "21.5"}, {pebble.InternalKeyKindSet, "x|empty", ""}, {pebble.InternalKeyKindDelete, "q|gone", ""},
		{pebble.InternalKeyKindRangeDelete, "u|1", "u|2"}, {pebble.InternalKeyKindSet, "t|a", "later"},
	}
	r := batchrepr.Reader(bytes.Clone(rows))
	for _, w := range want {
		kind, key, value, ok, err := r.Next()
		if !ok || err != nil || kind != w.kind || string(key) != w.key || string(value) != w.value {
			goldenfile.Differs(t, "batch", []any{kind, string(key), string(value), ok, err}, w)
		}
	}
	if len(r) > 0 {
		t.Errorf("%d bytes are left over", len(r))
	}
}
