package queue

// What of a session's queue on disk is in memory.
//
// While the client is connected, that is what is under way, what is sent next, and
// what has come last. While it is away, hardly anything: it has to be read for the
// client's first message anyway. When the memory for all clients gets tight, only
// the next message is left.
const (
	WindowMessages, WindowBytes         = 1000, 1 << 20
	AwayWindowMessages, AwayWindowBytes = 32, 64 << 10

	// A read from disk brings so much.
	PageMessages, PageBytes = WindowMessages / 4, WindowBytes / 4
)

const (
	RowOverhead  = 64  // bytes that a queued message takes on disk besides its own
	SlotOverhead = 320 // bytes that a queued message takes in memory besides its own, at the most

	// ChargedAlone is how many bytes a message has at least that is charged to the pool of
	// memory once, however many queues hold it. Smaller ones are charged for each queue,
	// with what the slot takes.
	ChargedAlone = 1 << 10
)

// Load is how many bytes so many messages take, with what each of them takes besides its own.
func Load(messages int, bytes, overhead int64) int64 { return bytes + int64(messages)*overhead }
