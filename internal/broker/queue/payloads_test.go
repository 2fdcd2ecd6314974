package queue

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Counts of messages that several queues share are charged beyond the first thousand, and
// given back. Without memory for another one, each queue is to have the message itself.
func TestPayloadsAreCharged(t *testing.T) {
	t.Parallel()
	const limit = 40 * payloadsStep * entryMemory
	pool := memory.NewPool(limit)
	p := NewPayloads(pool)
	var numbers []uint64
	for {
		number := p.Add(2, 100)
		if number == 0 {
			break
		}
		numbers = append(numbers, number)
		if used := pool.UsedBy(memory.Sessions); used != p.Memory() || used < int64(len(numbers)-payloadsStep)*entryMemory {
			t.Fatalf("%d bytes are charged for %d counts, and %d are said to be", used, len(numbers), p.Memory())
		}
	}
	if n := len(numbers); n < 30*payloadsStep || n > 31*payloadsStep {
		t.Errorf("%d counts fit into six eighths of %d bytes", n, limit)
	}
	last := len(numbers) - 1
	if p.Drop(numbers[last]) || !p.Drop(numbers[last]) || p.Add(2, 100) == 0 {
		t.Error("the place of a message that has gone is not free")
	}
	p.Refer(1<<40, 100) // was found on disk
	if used := pool.UsedBy(memory.Sessions); used != p.Memory() {
		t.Errorf("%d bytes are charged, and %d are said to be", used, p.Memory())
	}
	for _, number := range numbers[:last] {
		p.Drop(number)
		if !p.Drop(number) {
			t.Fatal("both references have gone, and the message stays")
		}
	}
	if used := pool.UsedBy(memory.Sessions); used != 0 {
		t.Errorf("%d bytes are charged for two counts", used)
	}
}
