package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/backup/remote"
	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// Backups
//
// A node that does not lead has the same rows as the leader, a little later. So that its copy
// has everything that was acknowledged before the command began, it asks the leader up to which
// entry a quorum has the log, and waits until its own database has that entry.

const (
	committedMagic = "holdfast commit1"
	// leaderPatience is how long a node waits for a leader, and then for what that has or does.
	leaderPatience = 30 * time.Second
)

// committed is what a leader answers.
type committed struct {
	Entry uint64 `json:"entry,omitempty"`
	Error string `json:"error,omitempty"`
}

func answerCommitted(c net.Conn, n *node.Node) {
	defer c.Close()
	if n == nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(leaderPatience))
	var a committed
	var err error
	if a.Entry, err = n.Committed(); err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(a)
}

// askCommitted asks the leader, which may be this node, once.
func (r *Reporter) askCommitted(ctx context.Context) (entry uint64, err error) {
	s := r.node.Status()
	switch {
	case s.Role == node.Leader:
		return r.node.Committed()
	case s.Leader == 0:
		return 0, ErrNoLeader
	}
	c, err := r.node.Dial(ctx, s.Leader, committedMagic)
	if err != nil {
		return 0, fmt.Errorf("the leader: %w", err)
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	var a committed
	if err := json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&a); err != nil {
		return 0, fmt.Errorf("the leader: %w", err)
	}
	if a.Error != "" {
		return 0, fmt.Errorf("the leader: %s", a.Error)
	}
	return a.Entry, nil
}

// catchUp waits until this node's database has everything that was acknowledged before the call.
func (r *Reporter) catchUp(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		entry, err := r.askCommitted(ctx)
		if err == nil {
			if err = r.node.AwaitApplied(ctx, entry); errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("what was acknowledged before is not all here after %v: %w; see holdfast cluster status, or make the backup on another node", patience, err)
			}
			return err
		}
		if errors.Is(err, node.ErrStopped) {
			return err
		}
		select {
		case <-time.After(changePause):
		case <-ctx.Done():
			return fmt.Errorf("no leader says what was acknowledged before (%w), so a backup might lack some of it: see holdfast cluster status", err)
		}
	}
}

// Backup writes a copy of this node's data, whether it leads or not, as backup.Backup does. Everything that the
// cluster has acknowledged before the call is in it.
func (r *Reporter) Backup(ctx context.Context, dir string, copies bool, progress func(backup.Progress)) (done remote.Result, err error) {
	return r.backup(ctx, leaderPatience, dir, copies, progress)
}

func (r *Reporter) backup(ctx context.Context, patience time.Duration, dir string, copies bool, progress func(backup.Progress)) (done remote.Result, err error) {
	if err := r.catchUp(ctx, patience); err != nil {
		return done, err
	}
	if !r.copying.CompareAndSwap(false, true) {
		return done, backup.ErrUnderWay
	}
	defer r.copying.Store(false)
	copied := &atEntry{Database: r.node.Database()}
	done.Progress, err = backup.Backup(copied, dir, copies, progress)
	done.Node, done.Entry = r.node.Name(), copied.entry
	return done, err
}

// atEntry is a node's database, and notes which entry its copy ends with.
type atEntry struct {
	node.Database
	entry uint64
}

func (a *atEntry) Checkpoint(dir string, copies bool) error {
	if err := a.Database.Checkpoint(dir, copies); err != nil {
		return err
	}
	at, _, err := identity.ReadDatabase(a.FS(), dir)
	a.entry = at.Index
	return errors.Join(err, datadir.RemoveLock(a.FS(), dir))
}

// serveBackup answers an operator.
func (r *Reporter) serveBackup(w http.ResponseWriter, q *http.Request, log *slog.Logger, note func(dir string, done backup.Progress, err error)) {
	remote.Serve(w, q, func(dir string, copies bool, progress func(backup.Progress)) (remote.Result, error) {
		log.Info("a backup begins", "node", r.node.Name(), "to", dir)
		done, err := r.Backup(context.WithoutCancel(q.Context()), dir, copies, progress)
		if err != nil {
			log.Error("a backup failed", "node", r.node.Name(), "to", dir, "error", err)
		} else {
			log.Info("a backup is done", "node", r.node.Name(), "to", dir, "files", done.Files, "bytes", done.Bytes, "up to entry", done.Entry)
		}
		if note != nil {
			note(dir, done.Progress, err)
		}
		return done, err
	})
}

// Backup asks the node that runs on a data directory for a backup into dir, as server.Backup asks a server.
func Backup(ctx context.Context, dataDir, dir string, copies bool, progress func(backup.Progress)) (remote.Result, error) {
	return remote.Ask(func(body io.Reader) (io.ReadCloser, error) {
		return open(ctx, dataDir, http.MethodPost, remote.Path, body)
	}, dir, copies, progress)
}
