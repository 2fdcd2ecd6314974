//go:build !race

package relay

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// A message that is passed on, and its answer, allocate nothing, and cost two reads and a write each:
// the second read finds nothing. It does not run in parallel with other tests, since it counts
// what the process does.
func TestPassingOnAllocatesNothing(t *testing.T) {
	f, n := newFollower(t, "127.0.0.1:1883"), newNode(t)
	f.Follow(n.leads(1))
	c := f.dial()
	send(t, c, "x")
	leader := n.client()
	expect(t, leader, "x")
	ways := []struct {
		from io.Writer
		to   io.Reader
	}{{c, leader}, {leader, c}}
	for _, size := range []int{100, 3000} {
		message, in := bytes.Repeat([]byte("m"), size), make([]byte, size)
		trip := func() {
			for _, way := range ways {
				if _, err := way.from.Write(message); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(way.to, in); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 10 { // fill the pools
			trip()
		}
		if n := testing.AllocsPerRun(200, trip); n != 0 {
			t.Errorf("%d bytes and an answer: %v allocations", size, n)
		}
		const trips = 300
		reads, writes := systemCalls(t)
		for range trips {
			trip()
		}
		readsAfter, writesAfter := systemCalls(t)
		r, w := float64(readsAfter-reads)/trips, float64(writesAfter-writes)/trips
		t.Logf("%d bytes and an answer: %.2f reads and %.2f writes", size, r, w)
		// Those of the relay are 4 and 2; client and leader write once each, and read once or twice.
		// The runtime wakes itself now and then with a write and a read of its own.
		if r > 8.5 || w > 4.5 {
			t.Errorf("%d bytes and an answer: %.2f reads and %.2f writes, want 8 and 4 at the most", size, r, w)
		}
	}
}

// systemCalls gives how often this process has called read and write.
func systemCalls(t *testing.T) (reads, writes int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip("this system doesn't count system calls: ", err)
	}
	if _, err := fmt.Sscanf(string(b[strings.Index(string(b), "syscr"):]), "syscr: %d\nsyscw: %d", &reads, &writes); err != nil {
		t.Fatal(err)
	}
	return reads, writes
}
