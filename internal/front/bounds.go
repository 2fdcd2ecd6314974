package front

import (
	"log/slog"
	"sort"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mux"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// ownDescriptors are those that a front needs besides clients, of the process's limit: for its
// links, questions to the nodes, listeners and --admin.
const ownDescriptors = 200

// boundByDescriptors has the front take no more connections than the process may have files open.
func (f *Front) boundByDescriptors() {
	limit, known := sockets.DescriptorLimit()
	if !known {
		return
	}
	most := limit - min(ownDescriptors, limit/2)
	if asked := f.o.MaxConnections; asked > most {
		level := slog.LevelWarn
		if asked == DefaultMaxConnections {
			level = slog.LevelInfo
		}
		f.o.Logger.Log(f.ending, level, "there can be fewer connections than --max-connections: the process may open too few files; raise the limit (ulimit -n, or LimitNOFILE= of a service)",
			"asked_for", asked, "maximum", most, "open_files", limit)
		f.o.MaxConnections = most
	}
	f.descriptors = &sockets.DescriptorBounds{Clients: most, Loopback: most, Logger: f.o.Logger}
}

// newMemory is a pool whose traffic, which is all that a front holds, may take so many bytes: half
// of it.
func newMemory(most int64) *memory.Pool { return memory.NewPool(2 * most) }

// holdInput charges what a client has sent and the leader does not take yet; false: there is no
// room.
func (f *Front) holdInput() bool { return f.memory.Take(memory.Input, mux.Window) }

func (f *Front) releaseInput() { f.memory.Credit(memory.Input, mux.Window) }

// relieve closes connections whenever there is too much that clients have not read: those with most
// of it first.
func (f *Front) relieve() {
	defer failstop.End(f.o.Logger, "the look at memory")
	for {
		select {
		case <-f.memory.Relief():
		case <-f.ending.Done():
			return
		}
		if f.memory.Over() {
			f.closeSlowest()
		}
	}
}

// closeSlowest closes connections until a quarter of the memory is free again.
func (f *Front) closeSlowest() {
	type slow struct {
		*client
		size int
	}
	var all []slow
	for _, c := range f.all() {
		if size := c.conn.Size(); size > 0 {
			all = append(all, slow{c, size})
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].size > all[j].size })
	closed := 0
	for _, c := range all {
		if f.memory.Excess() == 0 {
			break
		}
		c.closeUnread()
		closed++
	}
	f.slow.Add(int64(closed))
	f.o.Logger.Warn("clients that do not read were disconnected: what they had not read was at its bound (--max-buffered)", "clients", closed, "max_buffered", f.memory.Limit()/2)
}

// closeUnread closes the connection of a client that does not read.
func (c *client) closeUnread() {
	if s := c.stream.Load(); s != nil {
		s.CloseWith("the front has no memory for what its client does not read")
	}
	_ = c.conn.Close()
}

// turnAway closes a connection beyond the bound.
func (f *Front) turnAway() {
	f.beyond.Add(1)
	f.o.Logger.Warn("closing new connections: the front has as many as it may (--max-connections)", "maximum", f.o.MaxConnections)
}
