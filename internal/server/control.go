package server

import (
	"bufio"
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

// controlPath is where a backup is asked for: POST, a backupRequest as JSON; the
// answer is one backupLine per line, the last one with Done or Error.
const controlPath = "/v1/backup"

type backupRequest struct {
	Dir    string // absolute
	Copies bool   `json:",omitempty"` // of all files, no links
}

type backupLine struct {
	Progress backup.Progress
	Done     bool   `json:",omitempty"`
	Error    string `json:",omitempty"`
}

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
	mux.HandleFunc("POST "+controlPath, s.serveBackup)
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
	var q backupRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&q); err != nil || !filepath.IsAbs(q.Dir) {
		http.Error(w, "want the absolute path of a directory", http.StatusBadRequest)
		return
	}
	lines := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	s.log.Info("a backup begins", "to", q.Dir)
	done, err := backup.Backup(s.journal, q.Dir, q.Copies, func(p backup.Progress) {
		_ = lines.Encode(backupLine{Progress: p}) // the caller may have gone; the backup goes on
		_ = flush.Flush()
	})
	s.audit.Backup(q.Dir, int64(done.Files), done.Bytes, err)
	line := backupLine{Progress: done, Done: true}
	if err != nil {
		s.log.Error("a backup failed", "to", q.Dir, "error", err)
		line = backupLine{Error: err.Error()}
	} else {
		s.log.Info("a backup is done", "to", q.Dir, "files", done.Files, "bytes", done.Bytes)
	}
	_ = lines.Encode(line)
}

// ErrNotRunning: no server runs on the data directory, or none that can be reached.
var ErrNotRunning = errors.New("no server can be reached")

// Backup asks the server that runs on dataDir for a backup into dir, which must
// not exist, be empty, or hold a backup that was cut off; the server writes it, with links
// to its own files where that can be, or copies of all. Everything that the server has
// acknowledged before the call is in it.
func Backup(ctx context.Context, dataDir, dir string, copies bool, progress func(backup.Progress)) (backup.Progress, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return backup.Progress{}, err
	}
	body, err := postBackup(ctx, dataDir, backupRequest{Dir: dir, Copies: copies})
	if err != nil {
		return backup.Progress{}, err
	}
	defer body.Close()
	for scan := bufio.NewScanner(body); scan.Scan(); {
		var line backupLine
		switch err := json.Unmarshal(scan.Bytes(), &line); {
		case err != nil:
			return line.Progress, fmt.Errorf("the server's answer cannot be understood: %w", err)
		case line.Error != "":
			return line.Progress, errors.New(line.Error)
		case line.Done:
			return line.Progress, nil
		}
		progress(line.Progress)
	}
	return backup.Progress{}, errors.New("the server has gone before the backup was done")
}

func postBackup(ctx context.Context, dataDir string, q backupRequest) (io.ReadCloser, error) {
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(json.NewEncoder(writer).Encode(q)) }()
	body, err := askControl(ctx, dataDir, http.MethodPost, controlPath, reader)
	if errors.Is(err, ErrNotRunning) {
		err = fmt.Errorf("%w (A stopped server's directory can be copied as it is.)", err)
	}
	return body, err
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
// empty, after verifying the copy.
func Restore(from, dataDir string, progress func(backup.Progress)) (*Report, backup.Progress, error) {
	var report *Report
	done, err := backup.Restore(nil, from, dataDir, progress, func(dir string) (err error) {
		if report, err = Check(Config{DataDir: dir}, nil); err != nil {
			return err
		}
		if !report.Sound() {
			return fmt.Errorf("the backup %s is damaged, nothing was restored: %s", from, report.Problems[0])
		}
		return nil
	})
	return report, done, err
}
