//go:build !race

package server

import (
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// idleBytes is what an idle connection may take of the heap and of goroutines'
// stacks. 2 KiB are the stack of its reader, which must not grow.
const idleBytes = 4300

// stackAfterPing is more than one of 2 KiB, of 2,000 connections, by what other goroutines have.
const stackAfterPing = 2300

// An idle connection costs one goroutine with the smallest stack that there is,
// also after it has answered a PINGREQ, and about 2 KiB of heap: the connection,
// its session, and what Go's net package has for a socket.
func TestIdleConnectionIsSmall(t *testing.T) {
	s := start(t)
	const n = 2000
	first := dialIdle(t, s, "first") // whatever a first connection sets up is not counted
	defer syscall.Close(first)
	before, goroutines := memoryInUse(), runtime.NumGoroutine()
	clients := make([]int, n)
	for i := range clients {
		clients[i] = dialIdle(t, s, fmt.Sprint("idle-", i))
		defer syscall.Close(clients[i])
	}
	after := memoryInUse()
	each := func(name string) float64 { return float64(after[name]-before[name]) / n }
	heap, stack := each(heapBytes), each(stackBytes)
	t.Logf("heap %.0f B, stack %.0f B, %d goroutines", heap, stack, runtime.NumGoroutine()-goroutines)
	if got := heap + stack; got > idleBytes {
		t.Errorf("an idle connection takes %.0f bytes (heap %.0f, stack %.0f), want at most %d", got, heap, stack, idleBytes)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would make large stacks smaller again
	for _, fd := range clients {
		ping(t, fd)
	}
	if got := float64(stacksInUse()-before[stackBytes]) / n; got > stackAfterPing {
		t.Errorf("after a PINGREQ a connection has a stack of %.0f bytes, want at most %d", got, stackAfterPing)
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

func stacksInUse() int64 {
	samples := []metrics.Sample{{Name: stackBytes}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64())
}

// ping sends PINGREQ and awaits PINGRESP.
func ping(t *testing.T, fd int) {
	t.Helper()
	if _, err := syscall.Write(fd, mqtt.AppendPingreq(nil)); err != nil {
		t.Fatal(err)
	}
	var resp [2]byte
	if n, err := syscall.Read(fd, resp[:]); err != nil || n != 2 || mqtt.TypeOf(resp[0]) != mqtt.PINGRESP {
		t.Fatalf("PINGRESP: % x, %v", resp[:max(n, 0)], err)
	}
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
