package lockrank

// The places, as type parameters of Mutex and RWMutex.
type (
	Turn         struct{}
	Leaving      struct{}
	KeyStripe    struct{}
	Shard        struct{}
	StoreSession struct{}
	Settling     struct{}
	Overlay      struct{}
	Versions     struct{}
	Acks         struct{}
	TopicStripe  struct{}
	Fair         struct{}
	Session      struct{}
	Groups       struct{}
	Group        struct{}
	ExactFilters struct{}
	WildFilters  struct{}
	Names        struct{}
	NameList     struct{}
	Retainers    struct{}
	Deadlines    struct{}
	Payloads     struct{}
	Timers       struct{}
	Registry     struct{}
	Claims       struct{}
	Output       struct{}
	Lent         struct{}
	FlushQueue   struct{}
	Handshakes   struct{}
	Gate         struct{}
	SlabMemory   struct{}
	SlabMappings struct{}
	Space        struct{}
	Applying     struct{}
	Syncing      struct{}
	Log          struct{}
	Descriptors  struct{}
	Journal      struct{}
)

// order lists every lock of the server, outermost first.
//
// Most are held for a few instructions in memory. Those that may be held for longer,
// or while the process waits for the system, say so; no other lock may be. Writing
// to a socket never waits: what the socket doesn't take, a goroutine without locks
// carries (transport/write.go). Callbacks of the journal, of sinks and of the
// transport are called with no lock held but those that are named here.
var order = []entry{
	// The turn of completions and timers. It is held while that turn is flushed:
	// while up to fewDirty sockets are written to, and while sessions whose queue is
	// full end.
	lock[Turn]("broker.Broker.laterMu"),
	// Held while a session ends or its delayed will is published, and by a CONNECT
	// that goes on with the session. Never while waiting for the disk.
	lock[Leaving]("broker.Session.leaving"),

	// Held by LOAD, STORE and DONE over a look-up on disk. Neither the committer nor
	// a GET or SET takes it.
	lock[KeyStripe]("engine.stripe.mu"),
	// A request takes its place among the acknowledgements (Acks) under this lock,
	// so that replies keep the order of the changes.
	lock[Shard]("engine.shard.mu"),
	lock[StoreSession]("engine.session.mu"),
	lock[Settling]("engine.Local.settlingMu"),
	lock[Overlay]("engine.stripe.overlayMu"),
	lock[Versions]("engine.Local.mu"), // the rules of a write run under it

	// Held while what has become ready is written to the connection's output, and
	// responses are routed.
	lock[Acks]("broker.ackRing.mu"),
	// Held while a retained message is stored, routed and appended to the journal.
	lock[TopicStripe]("broker.retainedStore.stripes"),
	// Held while every session and group is looked at, some times a second at most.
	lock[Fair]("broker.Broker.fairMu"),
	// No two sessions are locked at once.
	lock[Session]("broker.Session.mu"),
	lock[Groups]("broker.Broker.groupsMu"),
	// No session is locked under it: those of a group's members come before.
	lock[Group]("broker.shareGroup.mu"),
	lock[ExactFilters]("topic.exactShard.mu"),
	lock[WildFilters]("topic.wildTrie.mu"),
	lock[Names]("topic.nameShard.mu"),
	lock[NameList]("topic.nameList.mu"),
	lock[Retainers]("broker.retainedOwners.mu"),
	lock[Deadlines]("broker.deadlines.mu"),
	lock[Payloads]("broker.payloads.mu"),
	lock[Timers]("broker.timers.mu"),
	lock[Registry]("broker.Broker.mu"),
	lock[Claims]("broker.claims.mu"),
	lock[Output]("transport.Conn.mu"),
	lock[Lent]("broker.lent.mu"),
	lock[FlushQueue]("transport.flushQueue.mu"),
	lock[Handshakes]("transport.handshakeListener.mu"),
	lock[Gate]("transport.Gate.mu"),

	lock[SlabMemory]("slab.Memory.mu"),
	lock[SlabMappings]("slab.mappings.mu"), // held while the system maps memory

	lock[Space]("journal.space.looking"),       // held over a look at the disk, and while the ballast is written
	lock[Applying]("journal.Journal.applying"), // held while Pebble takes rows, which may wait for the disk
	lock[Syncing]("journal.writeLog.syncing"),  // held over an fsync
	lock[Log]("journal.writeLog.mu"),           // held while a segment is made, renamed or removed
	lock[Descriptors]("journal.thriftyFS.mu"),  // held while spare descriptors are opened and closed
	lock[Journal]("journal.Journal.mu"),        // the filling batch; from Begin to End
}

type entry struct {
	place any
	name  string
}

func lock[P any](name string) entry { return entry{*new(P), name} }
