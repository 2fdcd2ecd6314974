package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"holdfast/internal/broker"
	"holdfast/internal/engine"
	"holdfast/internal/journal"
	"holdfast/internal/memory"
	"holdfast/internal/protocol"
	"holdfast/internal/service"
)

// Config says what a server is. Zero fields mean their default.
type Config struct {
	Listen         []string // TCP addresses, HOST:PORT; port 0: any free one
	WebSocket      []string // addresses for MQTT over WebSocket
	AllowOrigins   []string // web origins whose pages may connect, as host patterns; no other page may, not even to a loopback listener
	DataDir        string
	Durability     journal.Durability // when a write counts as durable; zero value: after its fsync
	DiskReserve    int64              // bytes of the disk to keep free; default the smaller of 256 MiB and 5 %
	AllowAnonymous bool               // listen beyond loopback although everybody who reaches the port may do everything

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
	MaxClientKeys        int64         // keys that one client may have written last; 0: no bound but MaxKeys
	MaxClientKeyBytes    int64         // bytes of those keys and their values; 0: no bound but MaxStoreBytes
	MaxWatches           int           // keys that one connection may watch
	MaxWatchBytes        int64         // bytes of those keys
	MaxScans             int           // SCANs that read at the same time, one of a connection; others wait
	Remember             time.Duration // how long a message is remembered whose STORE doesn't say
	MaxRemember          time.Duration // how long one may be that does
	MaxRemembered        int64         // messages remembered
	MaxClockSkew         time.Duration // how far ahead of our clock a client's may be
	AllowClockRegression bool          // start although the clock is behind the last version issued

	Version     string        // of the program, for $SYS
	SysInterval time.Duration // how often $SYS topics are brought up to date; default 10 s
	Logger      *slog.Logger
	Clock       engine.Clock      // nil: the machine's
	FS          journal.FS        // nil: the machine's
	Auth        broker.Authorizer // nil: everybody may do everything
	Keys        service.KeyPolicy // nil: everybody may read and write every key
}

// Default is what `holdfast serve` without flags is.
func Default() Config {
	return Config{Listen: []string{"127.0.0.1:1883"}, DataDir: "holdfast-data"}
}

// check says what is wrong with the configuration before anything is opened.
func (c *Config) check() error {
	if len(c.Listen)+len(c.WebSocket) == 0 {
		return errors.New("no address to listen on")
	}
	if c.DataDir == "" {
		return errors.New("no data directory given")
	}
	if c.NodeID != "" {
		if err := protocol.CheckNodeID(c.NodeID); err != nil {
			return fmt.Errorf("--node-id %q: %w", c.NodeID, err)
		}
	}
	longest := c.MaxRemember
	if longest == 0 {
		longest = engine.DefaultMaxRemember
	}
	if c.Remember < 0 || longest < 0 || c.Remember > longest {
		return fmt.Errorf("messages cannot be remembered for %v when %v is the maximum: raise the maximum", c.Remember, longest)
	}
	if c.MaxMemory != 0 && c.MaxMemory < memory.MinMaximum {
		return fmt.Errorf("%d bytes of memory are not enough for the server: give it at least %d MiB", c.MaxMemory, memory.MinMaximum>>20)
	}
	if c.Auth != nil || c.AllowAnonymous {
		return nil
	}
	for _, addr := range append(append([]string(nil), c.Listen...), c.WebSocket...) {
		if err := checkLoopback(addr); err != nil {
			return err
		}
	}
	return nil
}

// checkLoopback refuses an address that other machines may reach.
func checkLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("cannot listen on %q: want HOST:PORT, for example 127.0.0.1:1883", addr)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("refusing to listen on %s: nobody is asked who they are, so everybody who reaches that address could read and write everything; listen on 127.0.0.1, or say --allow-anonymous if that is what you want", addr)
}
