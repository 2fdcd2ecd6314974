//go:build cgo && !race

package delayed

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Very many timers take no heap. (Without cgo, and under the race detector, the database's
// cache is on the heap as well.)
func TestTimersTakeNoHeap(t *testing.T) {
	fs := vfs.Default
	j, err := journal.Open(journal.Options{FS: fs, Dir: t.TempDir(), Durability: journal.Durability{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	r := begin(t, j, 0, limits.Limits{})
	heap := func() int64 {
		r.Journal.WaitDurable()
		if err := r.Journal.Flush(); err != nil {
			t.Fatal(err)
		}
		r.Round(nil)
		runtime.GC()
		runtime.GC() // of what is pooled
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const few, many = 1000, 300_000
	for i := range few {
		r.set(fmt.Sprintf("few/%d", i), -hour)
	}
	before := heap()
	payload := []byte(strings.Repeat("x", 100))
	for range many {
		_, why := r.Set(Timer{Request: delay.Request{Asked: true, Relative: true, Ms: hour}, Message: &message.Outgoing{Topic: []byte("t"), Payload: payload, QoS: 1, Publisher: "c"}}, nil, nil)
		if why != NotRefused {
			t.Fatal(why)
		}
	}
	after := heap()
	if l := r.Levels(); l.Timers != few+many || l.Overlay > 0 {
		t.Errorf("%+v", l)
	}
	// The journal's and the database's buffers vary by up to 25 MB, whatever the number of
	// rows; a timer in memory would take three hundred bytes and more.
	if grown := after - before; grown > many*150 {
		t.Errorf("the heap has grown by %d bytes, %d for each timer", grown, grown/many)
	}
}
