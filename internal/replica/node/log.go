package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
)

// proposal is a batch that the journal commits.
type proposal struct {
	at   consensus.Proposed
	done chan error // capacity 2, for acksEarly
}

// end tells how it ended.
func (p *proposal) end(committed bool) {
	if committed {
		p.done <- nil
		return
	}
	p.done <- errLost
}

var errLost = fmt.Errorf("%w: another node may lead now, and whether the batch was committed is not known", journal.ErrLost)

// Log is the cluster's log as one journal sees it, which is opened once. Its Open is
// journal.Options.Log.
type Log struct {
	n      *Node
	ctx    context.Context
	of     uint64 // the generation of the database
	next   uint64 // Replay's: the next entry to give
	long   func()
	office atomic.Pointer[Office]
}

// Log gives a log for a journal on this node's data directory. It waits while the database is
// being replaced. The journal's Open returns when the node leads, or fails with ErrReplaced,
// ErrStopped or ctx's error.
func (n *Node) Log(ctx context.Context) *Log {
	return &Log{n: n, ctx: ctx, of: n.awaitReplaced(ctx)}
}

// Open is for journal.Options.Log.
func (l *Log) Open(o journal.LogOptions) (journal.Log, error) {
	if !o.Sync {
		return nil, errors.New("in a cluster a write is durable when a quorum of nodes has it on the disk: leave --durability at sync")
	}
	l.next, l.long = max(o.Applied, l.n.self.Load().Begins().Index)+1, o.Long
	l.n.mu.Lock()
	l.n.noRoom, l.n.checkpoint, l.n.tableSize = o.NoRoom, o.Copy, o.TableSize
	l.n.mu.Unlock()
	l.n.given.Store(l.next - 1)
	l.n.storing.setTables(0, l.long)
	return l, nil
}

// Figures are those of the node.
func (l *Log) Figures() Figures { return l.n.Figures() }

// Fsyncs is journal.FsyncTimer: those of the node's log, since the node was opened.
func (l *Log) Fsyncs() histogram.Snapshot { return l.n.fsyncs.Read() }

// Office is the office in which the journal was opened; nil: it was not yet.
func (l *Log) Office() *Office { return l.office.Load() }

// Row is for journal.Options.Row: what the database has to keep with the index of the last entry whose rows
// it has.
func (l *Log) Row(dst []byte, number uint64) (key, value []byte, err error) {
	term, err := l.n.log.Term(number)
	if err != nil {
		return nil, nil, fmt.Errorf("entry %d: %w", number, err)
	}
	l.n.mu.Lock()
	list := l.n.history.At(number)
	l.n.mu.Unlock()
	value, err = members.AppendRow(dst, term, list)
	return identity.MembersKey, value, err
}

// replayBytes is how much Replay reads from the log at a time.
const replayBytes = 1 << 20

// Replay gives the journal all entries that it lacks, as they are committed, until this node
// leads.
func (l *Log) Replay(fn func(number uint64, rows []byte) error) error {
	n := l.n
	stop := context.AfterFunc(l.ctx, n.wakeMoved)
	defer stop()
	for {
		committed, err := l.await()
		if err != nil || committed < l.next {
			return err
		}
		if l.next, err = n.log.EachRows(l.next, committed+1, replayBytes, func(index uint64, rows []byte) error {
			if err := fn(index, rows); err != nil {
				return err
			}
			n.given.Store(index)
			return nil
		}); err != nil {
			return err
		}
	}
}

// await waits until there are entries to give, or there are none and this node leads.
func (l *Log) await() (committed uint64, err error) {
	n := l.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		switch {
		case n.ending.Err() != nil:
			return 0, ErrStopped
		case l.ctx.Err() != nil:
			return 0, l.ctx.Err()
		case n.generation != l.of:
			return 0, ErrReplaced
		case n.committed >= l.next:
			return n.committed, nil
		case n.office != nil:
			l.office.Store(n.office)
			return n.committed, nil
		}
		n.moved.Wait()
	}
}

// Begin is called when the journal has been opened.
func (l *Log) Begin() error { return nil }

// Commit proposes a batch and waits until a quorum has it. An error is, or wraps,
// journal.ErrLost unless the node has failed.
func (l *Log) Commit(rows []byte) (number uint64, err error) {
	n, p := l.n, &proposal{done: make(chan error, 2)}
	data := append([]byte(nil), rows...)
	ran := n.do(func() {
		office := n.core.Office()
		if !office.Ready || office.Term != l.office.Load().term {
			p.end(false)
			return
		}
		at, err := n.core.Propose(data)
		if err != nil {
			p.end(false)
			return
		}
		p.at, n.proposed = at, p
		n.hurrying.begin(n.now())
		if acksEarly {
			p.done <- nil
		}
	})
	if !ran {
		return 0, fmt.Errorf("%w: %w", journal.ErrLost, ErrStopped)
	}
	select {
	case err = <-p.done:
		return p.at.Index, err
	case <-n.ending.Done():
		return 0, fmt.Errorf("%w: %w", journal.ErrLost, ErrStopped)
	}
}

// Sync has nothing to do: what was committed is durable.
func (l *Log) Sync() error { return nil }

// Trim tells that the database's tables have the rows of all entries up to applied.
func (l *Log) Trim(applied uint64) error {
	l.n.mu.Lock()
	l.n.history.Forget(applied)
	l.n.mu.Unlock()
	l.n.storing.setTables(applied, l.long)
	return nil
}

// Check says why a start would not find what was committed.
func (l *Log) Check() error { return l.n.log.Check() }

// Close ends the journal's use of the log.
func (l *Log) Close() error {
	l.n.mu.Lock()
	l.n.checkpoint, l.n.tableSize, l.n.barrier, l.n.commits, l.n.noRoom = nil, nil, nil, nil, nil
	l.n.mu.Unlock()
	l.n.storing.setTables(0, nil)
	return nil
}
