package queue

// How much of a session's queue on disk is also in memory.
//
// While the client is connected, that is the inflight messages, those that are sent next,
// and the newest ones. While the client is away, it is little: when the client returns,
// the broker reads the queue from disk anyway. When the memory for all clients is tight,
// only the next message is in memory.
const (
	WindowMessages, WindowBytes         = 1000, 1 << 20
	AwayWindowMessages, AwayWindowBytes = 32, 64 << 10

	// One read from disk ends at this many messages or bytes.
	PageMessages, PageBytes = WindowMessages / 4, WindowBytes / 4
)

const (
	RowOverhead  = 64  // bytes that a queued message takes on disk besides its own
	SlotOverhead = 320 // bytes that a queued message takes in memory besides its own; an upper bound

	// ChargedAlone is the size in bytes from which on a message is charged to the pool of
	// memory once, however many queues hold it. A smaller message is charged for each
	// queue, together with its slot.
	ChargedAlone = 1 << 10
)

// Footprint is what queued messages take on disk (with RowOverhead) or in memory (with
// SlotOverhead): their bytes, and overhead bytes for each.
func Footprint(messages int, bytes, overhead int64) int64 { return bytes + int64(messages)*overhead }
