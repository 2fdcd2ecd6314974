package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/backup/remote"
	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/opsocket"
	"github.com/holdfast-mqtt/holdfast/internal/overview"
	"github.com/holdfast-mqtt/holdfast/internal/trace/stream"
)

// Operators reach a running server through a Unix socket in its data directory, which
// only the directory's owner may use. It takes a few HTTP requests: for a backup, for
// the list of sessions, to end sessions (sessions.go), whether the server is ready (health.go), what is wrong with it
// and its machine (doctor.go), and what a client sends and gets (package stream).

// listenControl opens the socket. The server works without it.
func (s *Server) listenControl() {
	if s.config.FS != nil {
		return // the data is in no directory of the machine's
	}
	path := filepath.Join(s.config.DataDir, datadir.SocketName)
	l, err := opsocket.Listen(path)
	if err != nil {
		s.log.Warn("there is no control socket: holdfast backup, doctor, health, session, top and trace will not work", "path", path, "error", err)
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+remote.Path, s.serveBackup)
	mux.HandleFunc("GET "+healthPath, s.serveHealth)
	mux.HandleFunc("GET "+doctorPath, s.serveDoctor)
	mux.Handle("GET "+overview.Path, &overview.Handler{Sources: s.sources, Unready: s.unready})
	mux.Handle("GET "+stream.Path, &stream.Server{Tracer: &s.tracer, Connected: s.connected, Stop: s.stop, Log: s.log})
	mux.HandleFunc("GET "+sessionsPath, s.serveSessions)
	mux.HandleFunc("POST "+sessionsPath, s.serveSessionActions)
	s.control = &http.Server{
		Handler: failstop.Handler(s.log, mux), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		if err := s.control.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the control socket failed", "path", path, "error", err)
		}
	}()
}

// closeControl ends the socket; a backup under way may end first, until ctx does.
func (s *Server) closeControl(ctx context.Context) error {
	if s.control == nil {
		return nil
	}
	if err := s.control.Shutdown(ctx); err != nil {
		return s.control.Close()
	}
	return nil
}

func (s *Server) serveBackup(w http.ResponseWriter, r *http.Request) {
	remote.Serve(w, r, func(dir string, copies bool, progress func(backup.Progress)) (done remote.Result, err error) {
		s.log.Info("a backup begins", "to", dir)
		done.Progress, err = backup.Backup(s.journal, dir, copies, progress)
		s.BackedUp(dir, done.Progress, err)
		if err != nil {
			s.log.Error("a backup failed", "to", dir, "error", err)
		} else {
			s.log.Info("a backup is done", "to", dir, "files", done.Files, "bytes", done.Bytes)
		}
		return done, err
	})
}

// BackedUp has the audit log note a backup, which the node may have made whose server this is.
func (s *Server) BackedUp(dir string, done backup.Progress, err error) {
	s.audit.Backup(dir, int64(done.Files), done.Bytes, err)
}

// ErrNotRunning: no server runs on the data directory, or none that can be reached.
var ErrNotRunning = errors.New("no server can be reached")

// Backup asks the server that runs on dataDir for a backup into dir, which must
// not exist, be empty, or hold a backup that was cut off; the server writes it, with links
// to its own files where that can be, or copies of all. Everything that the server has
// acknowledged before the call is in it.
func Backup(ctx context.Context, dataDir, dir string, copies bool, progress func(backup.Progress)) (remote.Result, error) {
	return remote.Ask(func(body io.Reader) (io.ReadCloser, error) {
		answer, err := askControl(ctx, dataDir, http.MethodPost, remote.Path, body)
		if errors.Is(err, ErrNotRunning) {
			err = fmt.Errorf("%w (A stopped server's directory can be copied as it is.)", err)
		}
		return answer, err
	}, dir, copies, progress)
}

// askControl makes a request to the server that runs on dataDir. The caller closes
// the answer.
func askControl(ctx context.Context, dataDir, method, target string, body io.Reader) (io.ReadCloser, error) {
	path := filepath.Join(dataDir, datadir.SocketName)
	answer, err := opsocket.Ask(ctx, path, method, target, body)
	var refusal *opsocket.Refusal
	switch {
	case errors.Is(err, opsocket.ErrNotListening):
		return nil, fmt.Errorf("%w through %s: is --data the directory of a server that is running?", ErrNotRunning, path)
	case errors.As(err, &refusal):
		return nil, fmt.Errorf("the server refused: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return answer, nil
}

// askJSON makes a GET request to the server that runs on dataDir, and decodes its answer.
func askJSON(ctx context.Context, dataDir, target string, answer any) error {
	body, err := askControl(ctx, dataDir, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(answer); err != nil {
		return fmt.Errorf("the server's answer cannot be understood: %w", err)
	}
	return nil
}

// Trace traces a client or keys of the server that runs on dataDir, and calls each with what
// the trace has to say, the last time with Done. The error is ErrNotRunning if no server can
// be reached, ctx's, or what each returns.
func Trace(ctx context.Context, dataDir string, q stream.Request, each func(stream.Line) error) error {
	body, err := askControl(ctx, dataDir, http.MethodGet, q.Target(), nil)
	if err != nil {
		return err
	}
	defer body.Close()
	return errors.Join(stream.Read(body, each), ctx.Err())
}

// connected says whether a client is, for a trace of it.
func (s *Server) connected(clientID string) bool {
	info, known := s.broker.Sessions.Info(clientID)
	return known && info.Connected
}

// Restore copies a backup into a data directory that doesn't exist yet, or is
// empty, after verifying the copy. copied is called as files are copied, checked, if not
// nil, as the copy is verified.
func Restore(from, dataDir string, copied, checked func(backup.Progress)) (*Report, backup.Progress, error) {
	var report *Report
	done, err := backup.Restore(nil, from, dataDir, copied, func(dir string) (err error) {
		if report, err = Check(Config{DataDir: dir}, checked); err != nil {
			return err
		}
		if !report.Sound() {
			return fmt.Errorf("the backup %s is damaged, nothing was restored: %s", from, report.Problems[0])
		}
		return nil
	})
	return report, done, err
}
