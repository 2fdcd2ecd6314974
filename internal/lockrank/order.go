package lockrank

// The places, as type parameters of Mutex and RWMutex.
type (
	Reloading      struct{}
	DeferredOutput struct{}
	Lifecycle      struct{}
	KeyStripe      struct{}
	TimerStripe    struct{}
	Shard          struct{}
	StoreSession   struct{}
	Settling       struct{}
	Overlay        struct{}
	Versions       struct{}
	Acks           struct{}
	TopicStripe    struct{}
	Fair           struct{}
	Session        struct{}
	Groups         struct{}
	Group          struct{}
	ExactFilters   struct{}
	WildFilters    struct{}
	Names          struct{}
	NameList       struct{}
	Retainers      struct{}
	Deadlines      struct{}
	Payloads       struct{}
	Timers         struct{}
	Delayed        struct{}
	Registry       struct{}
	Connections    struct{}
	Principals     struct{}
	Rates          struct{}
	Claims         struct{}
	Output         struct{}
	Sealed         struct{}
	Lent           struct{}
	FlushQueue     struct{}
	Handshakes     struct{}
	Relay          struct{}
	ReplicaClients struct{}
	BridgeOutput   struct{}
	Fronts         struct{}
	MuxStream      struct{}
	MuxLink        struct{}
	Gate           struct{}
	SlabMemory     struct{}
	SlabMappings   struct{}
	Deciding       struct{}
	Space          struct{}
	Applying       struct{}
	Syncing        struct{}
	Log            struct{}
	ReplicaNode    struct{}
	ReplicaQueue   struct{}
	ReplicaLog     struct{}
	Descriptors    struct{}
	Journal        struct{}
	LoginChecks    struct{}
	LoginFailures  struct{}
	WebhookAnswers struct{}
	Audit          struct{}
)

// several are the places of which a goroutine may hold more than one lock: those are the
// elements of one array, and are acquired in its order.
var several = []any{KeyStripe{}, TimerStripe{}, TopicStripe{}, Shard{}}

// order lists every lock of the server, outermost first.
//
// Most are held for a few instructions in memory. Those that may be held for longer,
// or while the process waits for the system, say so; no other lock may be. Writing
// to a socket never waits: what the socket doesn't take, a goroutine without locks
// carries (transport/write.go). Callbacks of the journal, of sinks and of the
// transport are called with no lock held but those that are named here.
var order = []entry{
	// Held while files of the configuration are read, and what they say is put in force.
	lock[Reloading]("server.reloading.mu"),
	// Guards the turn that the journal's callbacks share. It is held while that turn is
	// flushed: while up to fewDirty sockets are written to, and while sessions whose queue is
	// full end.
	lock[DeferredOutput]("session.Env.deferredMu"),
	// Held while a session ends or its delayed will is published, and by a CONNECT
	// that goes on with the session. Never while waiting for the disk.
	lock[Lifecycle]("session.Session.Lifecycle"),

	// Held by LOAD, STORE, DONE and TXN over a look-up on disk, and by a TXN while its
	// messages are routed. Neither the committer nor a GET or SET takes it.
	lock[KeyStripe]("engine.stripe.mu"),
	// Held over a look-up on disk of the timer that has an ID, while a message that is due is
	// published, and by a TXN while its messages are routed. The committer does not take it.
	lock[TimerStripe]("delayed.Store.stripes"),
	// Held while a retained message is stored, routed and appended to the journal. A TXN
	// holds those of its retained messages while it locks the shards of its keys.
	lock[TopicStripe]("retained.Store.stripes"),
	lock[Shard]("engine.shard.mu"),
	lock[StoreSession]("engine.session.mu"),
	lock[Settling]("unapplied.Queue.mu"),
	lock[Overlay]("unapplied.Overlay.mu"),
	lock[Versions]("engine.Local.mu"), // the rules of a write run under it

	// Held while what has become ready is written to the connection's output, and
	// responses are routed.
	lock[Acks]("acks.Ring.mu"),
	// Held while every session and group is looked at, some times a second at most.
	lock[Fair]("routing.Router.fairMu"),
	// No two sessions are locked at once.
	lock[Session]("session.Session.Mu"),
	lock[Groups]("routing.Router.GroupsMu"),
	// No session is locked under it: those of a group's members come before.
	lock[Group]("share.Group.Mu"),
	lock[ExactFilters]("topic.exactShard.mu"),
	lock[WildFilters]("topic.wildTrie.mu"),
	lock[Names]("topic.nameShard.mu"),
	lock[NameList]("topic.nameList.mu"),
	lock[Retainers]("retained.owners.mu"),
	lock[Deadlines]("retained.deadlines.mu"),
	lock[Payloads]("queue.Payloads.mu"),
	lock[Timers]("timers.Timers.mu"),
	lock[Delayed]("delayed.Store.mu"),
	lock[Registry]("registry.Registry.mu"),
	lock[Connections]("broker.Broker.mu"),
	lock[Principals]("principals.Table.mu"),
	lock[Rates]("principals.Rates.mu"),
	lock[Claims]("registry.claims.mu"),
	lock[Output]("transport.Conn.mu"), // held while the alert that ends a TLS connection is encrypted
	lock[Sealed]("transport.wire.mu"),
	lock[Lent]("message.lent.mu"),
	lock[FlushQueue]("transport.flushQueue.mu"),
	lock[Handshakes]("sockets.Handshakes.mu"),
	lock[Gate]("transport.Gate.mu"),
	lock[Relay]("relay.Relay.mu"),
	lock[ReplicaClients]("clients.Clients.mu"),
	lock[BridgeOutput]("bridge.output.mu"),
	lock[Fronts]("fronts.Fronts.mu"),
	lock[MuxStream]("mux.Stream.mu"),
	lock[MuxLink]("mux.Link.mu"),

	lock[SlabMemory]("slab.Memory.mu"),
	lock[SlabMappings]("slab.mappings.mu"), // held while the system maps memory

	// Held while a node's consensus takes an event, and what it asks for is passed on: its messages are
	// written to sockets, which never waits, and entries for a node that is behind are read from the disk.
	lock[Deciding]("node.Node.deciding"),
	lock[Space]("datadir.Space.looking"),       // held over a look at the disk, and while the ballast is written
	lock[Applying]("journal.Journal.applying"), // held while Pebble takes rows, which may wait for the disk
	lock[Syncing]("wal.Log.syncing"),           // held over an fsync
	lock[Log]("wal.Log.mu"),                    // held while a segment is made, renamed or removed
	lock[ReplicaNode]("node.Node.mu"),
	lock[ReplicaQueue]("node.storing.mu"),
	lock[ReplicaLog]("raftlog.Log.mu"),
	lock[Descriptors]("datadir.ReservingFS.mu"), // held while spare descriptors are opened and closed
	lock[Journal]("journal.Journal.mu"),         // the filling batch; from Begin to End

	lock[LoginChecks]("throttle.Checks.mu"),
	lock[LoginFailures]("throttle.Failures.mu"),
	lock[WebhookAnswers]("webhook.answers.mu"),
	lock[Audit]("audit.file.mu"), // held while a line is written
}

type entry struct {
	place any
	name  string
}

func lock[P any](name string) entry { return entry{*new(P), name} }
