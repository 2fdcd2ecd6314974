//go:build unix && !race

package slab

import (
	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// mappings are what was asked of the system. It is apart from Memory so that it can
// outlive it, to unmap everything.
type mappings struct {
	mu  lockrank.Mutex[lockrank.SlabMappings]
	all map[*byte][]byte // guarded by mu: by the first byte
}

// mapped returns n bytes of zeros; n is a multiple of the page size. If the system
// refuses, Go's heap is asked, which ends the process if it can't either.
func (p *mappings) mapped(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return make([]byte, n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[*byte][]byte{}
	}
	p.all[&b[0]] = b
	return b
}

// unmap gives back what mapped returned.
func (p *mappings) unmap(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[&b[0]] == nil {
		return // from Go's heap
	}
	delete(p.all, &b[0])
	_ = unix.Munmap(b) // fails only for what is not mapped
}

func (p *mappings) unmapAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.all {
		_ = unix.Munmap(b)
	}
	p.all = nil
}

// dropPages gives the pages of c back to the system; its addresses stay, with
// anything in them.
func dropPages(c []byte) { _ = unix.Madvise(c, unix.MADV_DONTNEED) }
