// Package opsocket has the Unix sockets by which operators reach a program that runs: HTTP
// over a socket in a data directory, which only the directory's owner may use. It knows no
// request.
package opsocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"
)

// maxPath is the longest path that a Unix socket can have on Linux (108 bytes with the zero
// at its end; elsewhere 104).
const maxPath = 103

// maxRefusal bounds what is read of a refusal's text, in bytes.
const maxRefusal = 1 << 10

// ErrNotListening: no program listens at the path.
var ErrNotListening = errors.New("no program listens there")

// Refusal is an answer with another status than 200 OK.
type Refusal struct{ Status, Text string }

func (r *Refusal) Error() string { return r.Status + ": " + r.Text }

// Listen listens on a socket that only its owner may use, in place of one that a killed
// program has left: the caller holds the lock of the directory.
func Listen(path string) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("its path has %d bytes, a socket's may have %d: choose a data directory with a shorter path, or start the server inside it with a relative --data", len(path), maxPath)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// Before this, too, only the owner can open it: the directory is the owner's only.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Ask makes a request. The caller closes the answer. The error is ErrNotListening, a *Refusal,
// or what the connection or ctx says.
func Ask(ctx context.Context, path, method, target string, body io.Reader) (io.ReadCloser, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://holdfast"+target, body)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	response, err := client.Do(request)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EINVAL):
		return nil, ErrNotListening
	case err != nil:
		return nil, err
	case response.StatusCode != http.StatusOK:
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
		response.Body.Close()
		return nil, &Refusal{response.Status, string(text)}
	}
	return response.Body, nil
}
