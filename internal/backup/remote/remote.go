// Package remote carries backups over the socket for operators, of a server (package server) and
// of a node of a cluster (replica/control): a request for one, its progress while the program
// writes it, and how it ended.
package remote

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
)

// Path is where a backup is asked for: POST, a request as JSON; the answer is one line of JSON
// after the other, the last one with Done or Error.
const Path = "/v1/backup"

const maxRequest = 64 << 10 // bytes

type request struct {
	Dir    string // absolute
	Copies bool   `json:",omitempty"` // of all files, no links
}

type line struct {
	Progress backup.Progress
	Done     bool   `json:",omitempty"`
	Error    string `json:",omitempty"`
	Node     string `json:",omitempty"`
	Entry    uint64 `json:",omitempty"`
}

// Result says what a backup holds.
type Result struct {
	backup.Progress
	Node  string // of a cluster, which has written it; empty: a server by itself
	Entry uint64 // of the cluster's log, the last one that the backup has
}

// Serve answers a request. write writes the backup into an absolute path, also when the caller
// has gone.
func Serve(w http.ResponseWriter, r *http.Request, write func(dir string, copies bool, progress func(backup.Progress)) (Result, error)) {
	var q request
	if err := json.NewDecoder(io.LimitReader(r.Body, maxRequest)).Decode(&q); err != nil || !filepath.IsAbs(q.Dir) {
		http.Error(w, "want the absolute path of a directory", http.StatusBadRequest)
		return
	}
	lines := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	done, err := write(q.Dir, q.Copies, func(p backup.Progress) {
		_ = lines.Encode(line{Progress: p}) // the caller may have gone; the backup goes on
		_ = flush.Flush()
	})
	if err != nil {
		_ = lines.Encode(line{Error: err.Error()})
		return
	}
	_ = lines.Encode(line{Progress: done.Progress, Done: true, Node: done.Node, Entry: done.Entry})
}

// Ask asks for a backup into dir. post sends the request to Path and gives the answer.
func Ask(post func(body io.Reader) (io.ReadCloser, error), dir string, copies bool, progress func(backup.Progress)) (done Result, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return done, err
	}
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(json.NewEncoder(writer).Encode(request{Dir: dir, Copies: copies})) }()
	body, err := post(reader)
	if err != nil {
		return done, err
	}
	defer body.Close()
	for scan := bufio.NewScanner(body); scan.Scan(); {
		var l line
		switch err := json.Unmarshal(scan.Bytes(), &l); {
		case err != nil:
			return done, fmt.Errorf("the answer cannot be understood: %w", err)
		case l.Error != "":
			return done, errors.New(l.Error)
		case l.Done:
			return Result{Progress: l.Progress, Node: l.Node, Entry: l.Entry}, nil
		}
		progress(l.Progress)
	}
	return done, errors.New("the program that writes the backup has gone before it was done")
}
