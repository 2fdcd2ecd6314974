package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/backup/remote"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/opsocket"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

const (
	socketName   = "node.sock" // in the node's directory
	statusPath   = "/v1/status"
	transferPath = "/v1/transfer"
	healthPath   = "/v1/health"
	addPath      = "/v1/add"
	removePath   = "/v1/remove"
)

// SocketPath is that of the socket of the node with this data directory.
func SocketPath(dataDir string) string { return filepath.Join(dataDir, node.Dir, socketName) }

// Answers are what only the program knows of which the node is a part.
type Answers struct {
	Unready func() []string // why the node is not ready, for Health
	// BackedUp is told about each backup that was asked for. nil: nothing happens.
	BackedUp func(dir string, done backup.Progress, err error)
}

// Serve answers at the socket of the Reporter's node until the function that it returns is called.
func Serve(dataDir string, r *Reporter, program Answers, log *slog.Logger) (stop func(), err error) {
	path := SocketPath(dataDir)
	l, err := opsocket.Listen(path)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+statusPath, func(w http.ResponseWriter, q *http.Request) {
		_ = json.NewEncoder(w).Encode(r.Status(q.Context()))
	})
	mux.HandleFunc("POST "+transferPath, func(w http.ResponseWriter, q *http.Request) {
		var a transferred
		if err := r.Transfer(q.Context(), q.URL.Query().Get("to")); err != nil {
			a.Error = err.Error()
		}
		_ = json.NewEncoder(w).Encode(a)
	})
	mux.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(health{program.Unready()})
	})
	mux.HandleFunc("POST "+remote.Path, func(w http.ResponseWriter, q *http.Request) { r.serveBackup(w, q, log, program.BackedUp) })
	for path, add := range map[string]bool{addPath: true, removePath: false} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, q *http.Request) {
			var a changed
			asked := q.URL.Query()
			if err := r.Change(q.Context(), add, asked.Get("name"), asked.Get("address")); err != nil {
				a.Error = err.Error()
			}
			_ = json.NewEncoder(w).Encode(a)
		})
	}
	s := &http.Server{Handler: failstop.Handler(log, mux), ReadHeaderTimeout: askTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the socket for operators of the cluster failed", "path", path, "error", err)
		}
	}()
	return func() {
		_ = s.Close()
		<-ended
	}, nil
}

// health is the answer of healthPath.
type health struct {
	Unready []string `json:"unready"`
}

// Health asks the node that runs on a data directory why it serves no clients and passes none on;
// none: it does.
func Health(ctx context.Context, dataDir string) (unready []string, err error) {
	var h health
	err = ask(ctx, changePatience, dataDir, http.MethodGet, healthPath, &h)
	return h.Unready, err
}

// ErrNotRunning: no node runs on the data directory, or none that can be reached.
var ErrNotRunning = errors.New("no node of a cluster can be reached")

// Status asks the node that runs on a data directory for its cluster.
func Status(ctx context.Context, dataDir string) (out Report, err error) {
	return out, ask(ctx, statusPatience, dataDir, http.MethodGet, statusPath, &out)
}

// Transfer has the cluster of the node that runs on a data directory give the leadership to the node of
// this name or, if it is empty, to the one that is furthest.
func Transfer(ctx context.Context, dataDir, to string) error {
	var a transferred
	if err := ask(ctx, transferPatience, dataDir, http.MethodPost, transferPath+"?to="+url.QueryEscape(to), &a); err != nil {
		return err
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return nil
}

// Add has the cluster of the node that runs on a data directory add a node that runs and waits at an
// address. It returns when that is a learner; the cluster gives it a vote when it has all data.
func Add(ctx context.Context, dataDir, name, address string) error {
	return askChange(ctx, dataDir, addPath+"?name="+url.QueryEscape(name)+"&address="+url.QueryEscape(address))
}

// Remove has the cluster of the node that runs on a data directory remove the node of this name.
func Remove(ctx context.Context, dataDir, name string) error {
	return askChange(ctx, dataDir, removePath+"?name="+url.QueryEscape(name))
}

func askChange(ctx context.Context, dataDir, target string) error {
	var a changed
	if err := ask(ctx, changePatience, dataDir, http.MethodPost, target, &a); err != nil {
		return err
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return nil
}

// How long a command waits for the node that it asks, each longer than that one takes.
const (
	statusPatience   = askTimeout + 3*time.Second
	transferPatience = askTimeout + transferTimeout
	changePatience   = askTimeout + leaderPatience
)

// ask makes a request to the node that runs on a data directory, and waits that long for the answer.
func ask(ctx context.Context, patience time.Duration, dataDir, method, target string, answer any) error {
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, err := open(asking, dataDir, method, target, nil)
	if err == nil {
		defer body.Close()
		err = json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(answer)
	}
	if err != nil && asking.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("the node that runs on %s has not answered within %v: look at its log, and whether it is paused or its disk hangs", dataDir, patience)
	}
	return err
}

// open makes a request to the node that runs on a data directory. The caller closes the answer.
func open(ctx context.Context, dataDir, method, target string, body io.Reader) (io.ReadCloser, error) {
	path := SocketPath(dataDir)
	answer, err := opsocket.Ask(ctx, path, method, target, body)
	var refusal *opsocket.Refusal
	switch {
	case errors.Is(err, opsocket.ErrNotListening):
		return nil, fmt.Errorf("%w through %s: is --data the directory of a node that is running? One that waits for the others at its first start, or until it is added, does not answer yet, and its log says for what it waits", ErrNotRunning, path)
	case errors.As(err, &refusal):
		return nil, fmt.Errorf("the node refused: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return answer, nil
}
