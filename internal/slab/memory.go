package slab

import (
	"os"
	"runtime"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// ChunkSize is how many bytes Memory gives out at once.
const ChunkSize = 64 << 10

const (
	// regionChunks is how many chunks are asked of the system at once. What of
	// them is not touched costs addresses only.
	regionChunks = 64
	// keptChunks is how many free chunks keep their pages, to be given out again: a
	// chunk at the edge of what is used comes and goes often.
	keptChunks = 16
)

// Memory gives out memory that lies outside the Go heap, where the system has such
// a thing (memory_unix.go). It is given back when the Memory is collected, so a user
// of memory that it gave out must keep a reference to the Memory. Safe for concurrent use.
type Memory struct {
	taken    atomic.Int64
	mappings *mappings
	account  func(n int64) // nil: there is none

	mu   lockrank.Mutex[lockrank.SlabMemory]
	kept [][]byte // guarded by mu: free chunks, at most keptChunks
	free [][]byte // guarded by mu: free chunks without pages
	rest []byte   // guarded by mu: of the region that is being cut up
}

// NewMemory returns a Memory that has nothing yet.
func NewMemory() *Memory {
	m := &Memory{mappings: &mappings{}}
	runtime.AddCleanup(m, (*mappings).unmapAll, m.mappings)
	return m
}

// Account makes m call fn with the number of bytes that it gives out, and with the
// negative of what it takes back. It is called before m is used, and fn on many
// goroutines, with their locks held.
func (m *Memory) Account(fn func(n int64)) { m.account = fn }

func (m *Memory) take(n int64) {
	m.taken.Add(n)
	if m.account != nil {
		m.account(n)
	}
}

// Bytes is how much is given out: chunks and arrays, as they are, touched or not.
func (m *Memory) Bytes() int64 { return m.taken.Load() }

// chunk gives out ChunkSize bytes, with anything in them.
func (m *Memory) chunk() []byte {
	m.take(ChunkSize)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, list := range []*[][]byte{&m.kept, &m.free} {
		if n := len(*list); n > 0 {
			c := (*list)[n-1]
			*list = (*list)[:n-1]
			return c
		}
	}
	if len(m.rest) == 0 {
		m.rest = m.mappings.mapped(regionChunks * ChunkSize)
	}
	c := m.rest[:ChunkSize:ChunkSize]
	m.rest = m.rest[ChunkSize:]
	return c
}

// release takes a chunk back.
func (m *Memory) release(c []byte) {
	m.take(-ChunkSize)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = append(m.kept, c)
	if len(m.kept) > keptChunks {
		oldest := m.kept[0]
		m.kept = append(m.kept[:0], m.kept[1:]...)
		dropPages(oldest)
		m.free = append(m.free, oldest)
	}
}

// array gives out n bytes, all of them zero, rounded up to whole pages.
func (m *Memory) array(n int) []byte {
	page := os.Getpagesize()
	n = (n + page - 1) / page * page
	m.take(int64(n))
	return m.mappings.mapped(n)
}

// releaseArray takes an array back.
func (m *Memory) releaseArray(a []byte) {
	m.take(-int64(len(a)))
	m.mappings.unmap(a)
}
