package protocol_test

import (
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

func TestNodeIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"StateStore", "n", "store-1.example/7", "Zürich", strings.Repeat("n", protocol.MaxNodeID)} {
		if err := protocol.CheckNodeID(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		v := hlc.Timestamp{Wall: 1, Counter: 2, Node: id}
		if back, err := hlc.Parse(v.String()); err != nil || back != v {
			t.Errorf("%q makes versions that are read as %v, %v", id, back, err)
		}
	}
	for id, want := range map[string]string{
		"":      "at least one character",
		"a:b c": "no colon",
		"a b":   "no blanks",
		"a\nb":  "no blanks and no control characters",
		"a\x00": "no control characters",
		"\xff":  "UTF-8",
		strings.Repeat("n", protocol.MaxNodeID+1): "at most 256 bytes, this one has 257",
	} {
		if err := protocol.CheckNodeID(id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error with %q", id, err, want)
		}
	}
}
