package server

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/auth"
	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/broker/autosub"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rewrite"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/secrets"
	"github.com/holdfast-mqtt/holdfast/internal/spans"
)

// Config says what a server is. Zero fields mean their default.
type Config struct {
	Listen         []string        // HOST:PORT or URLs (mqtt, mqtts, ws, wss); port 0: any free one
	WebSocket      []string        // HOST:PORT for MQTT over WebSocket: the same as ws:// in Listen
	Listeners      []listen.Config // listeners with rules of their own
	Bridges        []bridge.Config // to other brokers; their names differ
	TLS            certs.Files     // of mqtts and wss in Listen, and of Listeners that name no others
	AllowOrigins   []string        // web origins whose pages may connect, as host patterns; no other page may, not even to a loopback listener
	DataDir        string
	Durability     journal.Durability // when a write counts as durable; zero value: after its fsync
	DiskReserve    int64              // bytes of the disk to keep free; default the smaller of 256 MiB and 5 %
	MaxHandshakes  int                // TLS and WebSocket handshakes under way; default 1000, or fewer with little memory
	AllowAnonymous bool               // clients without credentials may connect to every listener, also to those beyond loopback
	Login          auth.Config        // how clients prove who they are; Certificates follows the listeners
	AuditLog       string             // file for the audit log, or - for standard output; empty: none

	TopicRewrites []string // rules that replace topics and filters of clients (package broker/rewrite)
	AutoSubscribe []string // subscriptions that clients have when they connect (package broker/autosub)

	ClientEvents int // events of clients on $SYS that are published in a second at most (package broker/events); 0: none

	// Progress, if not nil, is called while Start reads the data, and now and then later, with how
	// many rows have been read. It may be called by several goroutines at a time.
	Progress func(rows int64)

	Admin string // HOST:PORT for health and metrics over HTTP, beyond loopback over HTTPS (package admin); empty: none

	Spans spans.Options // of requests to the store, for a collector of OpenTelemetry; Version, Node and Logger are the server's

	Wire   string        // "sdk" (default) or "documented" (protocol, section 6)
	NodeID string        // of the store, in versions; default "StateStore"
	Limits broker.Limits // of the broker

	// MaxMemory is how many bytes of memory the process should take at most; clients
	// get what they may hold from it (memory.PoolOf). 0: as memory.Maximum says, or
	// no bound on a system that does not say how much it has.
	MaxMemory int64
	// OwnProcess says that nothing else of note runs in the process: Go's memory
	// limit then follows MaxMemory, unless GOMEMLIMIT is set.
	OwnProcess bool

	MaxKeySize           int           // bytes of a key
	MaxKeys              int64         // keys in the store
	MaxStoreBytes        int64         // bytes of keys and values
	MaxClientKeys        int64         // keys that one principal may have written last, unless its quota says otherwise; 0: no bound but MaxKeys
	MaxClientKeyBytes    int64         // bytes of those keys and their values; 0: no bound but MaxStoreBytes
	MaxWatches           int           // keys that one connection may watch
	MaxWatchBytes        int64         // bytes of those keys
	MaxScans             int           // SCANs that read at the same time, one of a connection; others wait
	MaxTxnOperations     int           // operations of each kind of a TXN, at most protocol.MostTxnOperations
	Remember             time.Duration // how long a message is remembered whose STORE doesn't say
	MaxRemember          time.Duration // how long one may be that does
	MaxRemembered        int64         // bytes of remembered messages; default a quarter of what the disk has free at the start
	MaxClockSkew         time.Duration // how far ahead of our clock a client's may be
	AllowClockRegression bool          // start although the clock is behind the last version issued

	Version     string        // of the program, for $SYS
	SysInterval time.Duration // how often $SYS topics are brought up to date; default 10 s
	Logger      *slog.Logger
	Clock       engine.Clock         // nil: the machine's
	FS          journal.FS           // nil: the machine's
	Auth        access.Authenticator // nil: no client is asked who it is
	May         access.Permissions   // nil: every client may do everything
	Policy      string               // file that says what clients may do; empty: May says it

	Cluster    settings.Settings // of the node of a cluster that the server is, see package member; zero: it is by itself
	Replicated *Replicated       // package member sets it; nil: the server is by itself

	Reload         []Reloader    // what else is read again while the server runs
	ReloadInterval time.Duration // how often its files are looked at; default DefaultReloadInterval
}

// Default is what `holdfast serve` without flags is.
func Default() Config {
	return Config{Listen: []string{"127.0.0.1:1883"}, DataDir: "holdfast-data"}
}

// Check says what is wrong with the configuration before anything is opened.
func (c *Config) Check() error {
	if c.DataDir == "" {
		return errors.New("no data directory given")
	}
	if c.NodeID != "" {
		if err := protocol.CheckNodeID(c.NodeID); err != nil {
			return fmt.Errorf("--node-id %q: %w", c.NodeID, err)
		}
	}
	if _, err := rewrite.Parse(c.TopicRewrites); err != nil {
		return fmt.Errorf("--topic-rewrite %w", err)
	}
	if _, err := autosub.Parse(c.AutoSubscribe); err != nil {
		return fmt.Errorf("--auto-subscribe %w", err)
	}
	longest := c.MaxRemember
	if longest == 0 {
		longest = engine.DefaultMaxRemember
	}
	if c.Remember < 0 || longest < 0 || c.Remember > longest {
		return fmt.Errorf("messages cannot be remembered for %v when %v is the maximum: raise the maximum", c.Remember, longest)
	}
	if err := c.Cluster.Check(c.Durability == journal.Durability{}); err != nil {
		return err
	}
	if c.MaxTxnOperations < 0 || c.MaxTxnOperations > protocol.MostTxnOperations {
		return fmt.Errorf("a TXN cannot have %d operations of a kind: set --max-txn-operations to between 1 and %d", c.MaxTxnOperations, protocol.MostTxnOperations)
	}
	if c.MaxMemory != 0 && c.MaxMemory < memory.MinMaximum {
		return fmt.Errorf("%d bytes of memory are not enough for the server: give it at least %d MiB", c.MaxMemory, memory.MinMaximum>>20)
	}
	if err := c.Spans.Check(); err != nil {
		return err
	}
	_, err := c.login()
	return err
}

// ListenConfigs are all listeners, checked.
func (c *Config) ListenConfigs() (all []listen.Config, err error) {
	for _, text := range c.Listen {
		u, err := listen.ParseURL(text)
		if err != nil {
			return nil, err
		}
		all = append(all, listen.Config{URL: u})
	}
	for _, addr := range c.WebSocket {
		u, err := listen.ParseURL(listen.WS + "://" + addr)
		if err != nil || strings.Contains(addr, "://") {
			return nil, fmt.Errorf("cannot listen on %q for WebSocket: want HOST:PORT, for example 127.0.0.1:9001", secrets.URL(addr))
		}
		all = append(all, listen.Config{URL: u})
	}
	all = append(all, c.Listeners...)
	if len(all) == 0 {
		return nil, errors.New("no address to listen on")
	}
	for i := range all {
		l := &all[i]
		l.TLS = l.TLS.Or(c.TLS)
		l.Anonymous = l.Anonymous || c.AllowAnonymous
		if l.URL.IsWebSocket() && l.AllowOrigins == nil {
			l.AllowOrigins = c.AllowOrigins
		}
		if !c.asksClients() && !l.Anonymous && !l.URL.IsLoopback() && !l.ClientsShowCertificates() {
			return nil, fmt.Errorf("refusing to listen on %s: clients are not authenticated, so every client that reaches that address could read and write everything; listen on 127.0.0.1, have clients authenticate (--password-file, --jwt-keys, --webhook, --tls-client-ca with mqtts://; holdfast init DIR sets it up), or allow that with --allow-anonymous", l.URL)
		}
	}
	return all, nil
}
