// Package doctor examines a machine, or a server that runs, for what goes wrong in
// operation: too few descriptors, a clock that is not synchronized, a slow or volatile
// disk, too little memory, certificates about to expire. Each check returns a Finding that
// says what is the case and what to change.
//
// The server package calls it with what only that knows. Probe functions look at the
// machine; the others judge figures, and read nothing.
package doctor

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// Level says how much a Finding matters.
type Level string

const (
	OK      Level = "ok"
	Advice  Level = "advice"  // works, and could be better
	Problem Level = "problem" // a promise or the service is in danger
)

// Finding is what one check has found.
type Finding struct {
	Check  string // one word: descriptors, clock, disk, fsync, memory, certificates, …
	Level  Level
	Found  string // what is the case
	Change string `json:",omitempty"` // what to do about it; empty if Level is OK
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Found: fmt.Sprintf(format, args...)}
}

// but is f as something to be changed.
func (f Finding) but(level Level, change string, args ...any) Finding {
	f.Level, f.Change = level, fmt.Sprintf(change, args...)
	return f
}

// Worst is the highest Level of some findings; OK if there are none.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level == Problem || f.Level == Advice && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

// Descriptors judges how many files the process may open (limit; 0: unknown), and how many
// connections that leaves room for (room) of those that are wanted.
func Descriptors(limit, room, wanted int) Finding {
	if limit == 0 {
		return ok("descriptors", "this system does not limit the files of a process")
	}
	f := ok("descriptors", "the process may open %d files, so there may be %d connections", limit, min(room, wanted))
	if room < wanted {
		return f.but(Advice, "for the %d connections of --max-connections raise the limit of open files: ulimit -n, or LimitNOFILE= of a service", wanted)
	}
	return f
}

// Synchronization is what the kernel says of its clock.
type Synchronization struct {
	Known  bool
	Synced bool
	Error  time.Duration // by which the clock may be wrong, if Synced
}

// Clock judges the machine's clock. ahead is how far the last version of the store is
// ahead of it, skew how far that may be.
func Clock(s Synchronization, ahead, skew time.Duration) Finding {
	f := ok("clock", "whether the clock is synchronized is not known on this system")
	switch {
	case s.Known && s.Synced:
		f = ok("clock", "the clock is synchronized, to within %v", s.Error.Round(time.Microsecond))
	case s.Known:
		f = ok("clock", "no service synchronizes the clock").but(Advice, "run chrony, ntpd or systemd-timesyncd: expiries, leases and versions follow the clock, and requests of clients more than %v ahead of it are refused", skew)
	}
	if ahead > 0 {
		f.Found += fmt.Sprintf("; the last version is %v ahead of it", ahead.Round(time.Millisecond))
	}
	if ahead > skew {
		return f.but(Problem, "the clock was set back, or is wrong: set it right; until then a server does not start on this data")
	}
	return f
}

// NodeClock judges the clock of a node of a cluster, which is so far ahead of that of a majority (negative:
// behind), of which are the nodes agree; majority: there is one. Others that have said what time it is
// are as many as answer.
func NodeClock(answer int, majority, wrong bool, ahead time.Duration, agree []string) Finding {
	where := "ahead of"
	if ahead < 0 {
		where = "behind"
	}
	off, nodes := ahead.Abs().Round(time.Millisecond), strings.Join(agree, ", ")
	switch {
	case answer == 0:
		return ok("clocks", "no other node has said what time it is")
	case !majority:
		return ok("clocks", "the clocks of the nodes that answer differ, and no majority of them agrees").but(Problem, "set right the one that is wrong, which holdfast cluster status may tell, before versions of the future are written: then no node with a right clock may lead until that time has come")
	case wrong:
		return ok("clocks", "the clock is %v %s those of %s", off, where, nodes).but(Problem, "set it right: until then this node does not lead as long as another one can")
	}
	return ok("clocks", "the clock agrees with that of %s, to within %v", nodes, off)
}

// Disk judges the room on a disk, in bytes, and its file system (empty: unknown).
func Disk(kind string, free, reserve int64) Finding {
	f := ok("disk", "%s of the disk are free; below %s new data is refused", units.FormatBytes(free), units.FormatBytes(reserve))
	if kind != "" {
		f.Found = kind + ": " + f.Found
	}
	switch {
	case volatile[kind] && free < reserve:
		return f.but(Problem, "make room; and choose a directory on a disk (--data): this file system is in memory, where everything is lost with the machine, and an fsync keeps nothing")
	case volatile[kind]:
		return f.but(Problem, "this file system is in memory: everything is lost with the machine, and an fsync keeps nothing; choose a directory on a disk (--data)")
	case free < reserve:
		return f.but(Problem, "make room, or choose a directory on another disk (--data)")
	case remote[kind]:
		return f.but(Advice, "this file system is on another machine: its fsync and its locks are only as good as that machine's; prefer a local disk (--data)")
	case kind == "overlay":
		return f.but(Advice, "in a container, what is in its own layer is gone with it: mount a volume there (--data)")
	case free < 4*reserve:
		return f.but(Advice, "make room soon: queues and keys grow on this disk")
	}
	return f
}

var (
	volatile = map[string]bool{"tmpfs": true, "ramfs": true}
	remote   = map[string]bool{"nfs": true, "cifs": true, "9p": true, "fuse": true, "ceph": true}
)

// Times of an fsync beyond which a disk is slow, and below which it cannot have written.
const (
	slowFsync     = 10 * time.Millisecond
	stalledFsync  = 500 * time.Millisecond
	volatileFsync = 15 * time.Microsecond
)

// Fsync judges the time of an fsync: the median and the longest of count. syncs says
// whether a write waits for its fsync (--durability sync).
func Fsync(median, longest time.Duration, count int64, syncs bool) Finding {
	if count == 0 {
		return ok("fsync", "no write has been synced yet")
	}
	f := ok("fsync", "half of the fsyncs take at most %v, all of them at most %v", short(median), short(longest))
	switch {
	case !syncs:
		f.Found += "; writes are acknowledged before it"
		return f.but(Advice, "a crash of the machine loses what was acknowledged last: --durability sync keeps it")
	case median < volatileFsync:
		return f.but(Advice, "no disk writes that fast: a cache without a battery, or a hypervisor that ignores fsync, loses acknowledged writes in a power cut; ask the operator of the machine")
	case longest > stalledFsync:
		return f.but(Advice, "the disk stalls at times: look for other programs that use it, and for errors in the kernel's log")
	case median > slowFsync:
		return f.but(Advice, "the disk is slow: a client with one request at a time gets %.0f writes a second; prefer an SSD, best one with power-loss protection", float64(time.Second)/float64(median))
	}
	return f
}

func short(d time.Duration) time.Duration {
	if d > 10*time.Millisecond {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}

// leastMemory is below which the defaults leave little to clients.
const leastMemory = 256 << 20

// Memory judges the memory that the process may take (maximum, for the reason source), of
// what the machine has, in bytes. 0: unknown.
func Memory(maximum, machine int64, source string) Finding {
	if maximum == 0 {
		return ok("memory", "this system does not say how much memory it has").but(Advice, "set --max-memory: nothing bounds what all clients together may hold")
	}
	f := ok("memory", "the process takes at most %s (%s)", units.FormatBytes(maximum), source)
	switch {
	case machine > 0 && maximum > machine:
		return f.but(Problem, "the machine, or the cgroup, has %s: lower --max-memory, or the kernel ends the process", units.FormatBytes(machine))
	case maximum < leastMemory:
		return f.but(Advice, "that is little: large messages and long queues are refused early; give it %s", units.FormatBytes(leastMemory))
	}
	return f
}

// Bounds is the Check of what Bound finds: there are many of them.
const Bounds = "bounds"

// Bound judges how far a bound is filled. what says what it bounds.
func Bound(what string, used, bound float64) Finding {
	f := ok(Bounds, "%s: %.0f %% of %.0f", what, math.Floor(100*used/bound), bound)
	switch {
	case used >= bound:
		return f.but(Problem, "the bound is reached and more is refused: raise it, or remove something")
	case used >= 0.8*bound:
		return f.but(Advice, "at the bound more is refused: raise it in time, or remove something")
	}
	return f
}

// Times before the end of a certificate at which it should be renewed; of one that is valid
// for a short time, a third and a tenth of that.
const (
	renewSoon = 30 * 24 * time.Hour
	renewNow  = 3 * 24 * time.Hour
)

// Certificate judges a certificate's time. name is that of its file or subject.
func Certificate(name string, from, until, now time.Time) Finding {
	left, valid := until.Sub(now), until.Sub(from)
	f := ok("certificates", "%s is valid until %s", name, until.UTC().Format(time.DateOnly))
	switch {
	case now.Before(from):
		f.Found = fmt.Sprintf("%s is not valid before %s", name, from.UTC().Format(time.RFC3339))
		return f.but(Problem, "set the machine's clock right, or make another certificate")
	case left <= 0:
		f.Found = fmt.Sprintf("%s has expired on %s", name, until.UTC().Format(time.DateOnly))
		return f.but(Problem, "renew it: clients refuse the server; a server that runs reads the new file by itself")
	case left < min(renewNow, valid/10):
		return f.but(Problem, "renew it now: a server that runs reads the new file by itself")
	case left < min(renewSoon, valid/3):
		return f.but(Advice, "renew it: a server that runs reads the new file by itself")
	}
	return f
}

// Serving judges whether a server serves clients; reasons are why it does not.
func Serving(reasons []string) Finding {
	if len(reasons) > 0 {
		return ok("server", "the server runs, and does not serve clients: %s", strings.Join(reasons, "; ")).but(Problem, "wait, or see the server's log")
	}
	return ok("server", "the server serves clients")
}

// Following judges a node of a cluster that does not lead: leader is the node to which it passes clients on,
// reasons are why it does not.
func Following(leader string, reasons []string) Finding {
	if len(reasons) > 0 {
		return ok("server", "the node runs, and is not ready: %s", strings.Join(reasons, "; ")).but(Problem, "wait, or see holdfast cluster status and the node's log")
	}
	return ok("server", "the node follows, and passes clients on to node %s", leader)
}

// Nodes judges those of a cluster, of which there are count; wrong is what holdfast cluster status says is wrong.
func Nodes(count int, wrong string) Finding {
	f := ok("nodes", "all %d nodes of the cluster answer, and one leads", count)
	if wrong != "" {
		f.Found = wrong
		return f.but(Problem, "start the nodes that are missing, or remove them from the cluster (holdfast cluster remove)")
	}
	return f
}

// Bridge judges the connection of a bridge, by its name; reason is why it has none, in a word of the metrics.
func Bridge(name string, connected bool, reason string) Finding {
	if connected {
		return ok("bridges", "%s is connected", name)
	}
	f := ok("bridges", "%s is not connected", name)
	switch reason {
	case "itself":
		f.Found += ": its url leads to this server itself"
		return f.but(Problem, "correct the bridge's url, and start the server again")
	case "refused":
		f.Found += ": a broker refuses it"
		return f.but(Problem, "see the server's log for the reason code; the bridge reads its password and certificates again when it tries the next time")
	}
	return f.but(Problem, "see the server's log for the reason; does the other broker run, and can this machine reach it?")
}

// Fine is a Finding of which there is nothing to judge.
func Fine(check, found string) Finding { return ok(check, "%s", found) }

// Refused is a Finding of an error that keeps a server from starting. The error says what to
// do.
func Refused(check string, err error) Finding {
	return ok(check, "%v", err).but(Problem, "a server does not start until this is mended")
}
