//go:build !unix || race

package slab

// Where there is no mmap, memory comes from Go's heap. Also for the race detector,
// which sees no other memory.
type mappings struct{}

func (p *mappings) mapped(n int) []byte { return make([]byte, n) }
func (p *mappings) unmap([]byte)        {}
func (p *mappings) unmapAll()           {}

func dropPages([]byte) {}
