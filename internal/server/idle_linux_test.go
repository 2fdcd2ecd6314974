//go:build !race

package server

import (
	"fmt"
	"net"
	"runtime"
	"runtime/metrics"
	"syscall"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// idleBytes is what an idle connection may take of the heap and of goroutines'
// stacks. 2 KiB are the stack of its reader, which must not grow.
const idleBytes = 4300

// An idle connection costs one goroutine with the smallest stack that there is,
// and about 2 KiB of heap: the connection, its session, and what
// Go's net package has for a socket.
func TestIdleConnectionIsSmall(t *testing.T) {
	s := start(t)
	const n = 2000
	first := dialIdle(t, s, "first") // whatever a first connection sets up is not counted
	defer syscall.Close(first)
	before, goroutines := memoryInUse(), runtime.NumGoroutine()
	for i := range n {
		defer syscall.Close(dialIdle(t, s, fmt.Sprint("idle-", i)))
	}
	after := memoryInUse()
	each := func(name string) float64 { return float64(after[name]-before[name]) / n }
	heap, stack := each(heapBytes), each(stackBytes)
	t.Logf("heap %.0f B, stack %.0f B, %d goroutines", heap, stack, runtime.NumGoroutine()-goroutines)
	if got := heap + stack; got > idleBytes {
		t.Errorf("an idle connection takes %.0f bytes (heap %.0f, stack %.0f), want at most %d", got, heap, stack, idleBytes)
	}
	// The journal's and the database's come and go.
	until(t, "there is one goroutine for each connection", func() bool { return runtime.NumGoroutine()-goroutines <= n })
}

const (
	heapBytes  = "/memory/classes/heap/objects:bytes"
	stackBytes = "/memory/classes/heap/stacks:bytes"
)

// memoryInUse gives the bytes in live objects and in stacks.
func memoryInUse() map[string]int64 {
	runtime.GC() // twice: what a pool holds is gone only after the second
	runtime.GC()
	samples := []metrics.Sample{{Name: heapBytes}, {Name: stackBytes}}
	metrics.Read(samples)
	m := map[string]int64{}
	for _, s := range samples {
		m[s.Name] = int64(s.Value.Uint64())
	}
	return m
}

// dialIdle connects a client that is no more than a descriptor, so that all that
// is measured is the server's.
func dialIdle(t *testing.T, s *Server, id string) (fd int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	addr := &syscall.SockaddrInet4{Port: s.Addrs()[0].(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := syscall.Connect(fd, addr); err != nil {
		t.Fatal(err)
	}
	connect := mqtt.AppendConnect(nil, &mqtt.Connect{Version: mqtt.V5, CleanStart: true, ClientID: []byte(id), KeepAlive: 60, RequestProblemInfo: true})
	if _, err := syscall.Write(fd, connect); err != nil {
		t.Fatal(err)
	}
	var connack [256]byte
	if n, err := syscall.Read(fd, connack[:]); err != nil || n < 4 || mqtt.TypeOf(connack[0]) != mqtt.CONNACK {
		t.Fatalf("CONNACK: % x, %v", connack[:max(n, 0)], err)
	}
	return fd
}
