package profile

import (
	"maps"
	"testing"
)

// A profile's stacks are charged to the room of the innermost function that
// belongs to one; what the benchmark's own client does isn't a request's.
func TestAProfileIsChargedToRooms(t *testing.T) {
	t.Parallel()
	traces := []byte(`File: server.test
Type: cpu
-----------+-------------------------------------------------------
 800000000ns   internal/runtime/syscall/linux.Syscall6
             syscall.Write (inline)
             github.com/holdfast-mqtt/holdfast/internal/transport.writeOnce
             github.com/holdfast-mqtt/holdfast/internal/broker.(*Conn).handleBuffered
-----------+-------------------------------------------------------
 300000000ns   runtime.memmove
             github.com/holdfast-mqtt/holdfast/internal/mqtt.AppendDelivery
             github.com/holdfast-mqtt/holdfast/internal/broker.(*Conn).deliver
-----------+-------------------------------------------------------
 600000000ns   syscall.write
             github.com/holdfast-mqtt/holdfast/internal/server.(*wire).send
-----------+-------------------------------------------------------
 100000000ns   runtime.findRunnable
             runtime.mcall
`)
	s := spent{"GET", map[string]float64{}}
	if err := s.add(traces, 1_000_000); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"write system call": 800, "MQTT: encode": 300, elsewhere.name: 100}
	if !maps.Equal(s.rooms, want) {
		t.Errorf("got %v, want %v", s.rooms, want)
	}
	if err := s.add([]byte("no samples"), 1); err == nil {
		t.Error("a profile without stacks is no error")
	}
}

// A sample belongs to the innermost function that says what it is for.
func TestRoomOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stack []string
		want  string
	}{
		{[]string{"syscall.RawSyscall", "github.com/holdfast-mqtt/holdfast/internal/transport.callNow", "github.com/holdfast-mqtt/holdfast/internal/transport.writeNow", "github.com/holdfast-mqtt/holdfast/internal/transport.writeOnce", "github.com/holdfast-mqtt/holdfast/internal/broker.(*Conn).read"}, "write system call"},
		{[]string{"syscall.Syscall", "github.com/cockroachdb/pebble/v2/vfs.(*linuxFile).SyncData", "github.com/holdfast-mqtt/holdfast/internal/wal.(*Log).sync"}, "journal: the log and its fsync"},
		{[]string{"hash/crc32.update", "github.com/holdfast-mqtt/holdfast/internal/wal.(*Log).Commit", "github.com/holdfast-mqtt/holdfast/internal/journal.(*Journal).runCommitter"}, "journal: the log and its fsync"},
		{[]string{"runtime.memmove", "github.com/cockroachdb/pebble/v2.(*Batch).Set", "github.com/holdfast-mqtt/holdfast/internal/engine.(*turn).commit"}, "journal: rows, and Pebble"},
		{[]string{"runtime.mapaccess", "github.com/holdfast-mqtt/holdfast/internal/engine.(*session).write", "github.com/holdfast-mqtt/holdfast/internal/broker.(*Conn).read"}, "store: service and rules"},
		{[]string{"runtime.futex", "runtime.schedule"}, elsewhere.name},
	} {
		if got, ok := roomOf(c.stack); got != c.want || !ok {
			t.Errorf("%s: %q, want %q", c.stack[0], got, c.want)
		}
	}
	if _, ok := roomOf([]string{"runtime.memmove", "github.com/holdfast-mqtt/holdfast/internal/server.(*wire).send"}); ok {
		t.Error("the load generator's time is taken for the server's")
	}
}
