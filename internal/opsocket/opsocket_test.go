package opsocket

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// dirFor is a directory whose sockets have short paths.
func dirFor(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "op")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestAsk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(dirFor(t), "s")
	if _, err := Ask(t.Context(), path, http.MethodGet, "/", nil); !errors.Is(err, ErrNotListening) {
		t.Errorf("without a program: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil { // as a killed program leaves one
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want a socket for its owner alone", info.Mode(), err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			http.Error(w, "not this"+strings.Repeat(".", 2*maxRefusal), http.StatusConflict)
			return
		}
		_, _ = io.Copy(w, r.Body)
	})}
	go s.Serve(l)
	defer s.Close()
	body, err := Ask(t.Context(), path, http.MethodPost, "/echo", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if got, err := io.ReadAll(body); string(got) != "hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	var refusal *Refusal
	if _, err := Ask(t.Context(), path, http.MethodGet, "/no", nil); !errors.As(err, &refusal) || len(refusal.Text) != maxRefusal || !strings.HasPrefix(err.Error(), "409 Conflict: not this") {
		t.Errorf("a refusal: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Ask(ended, path, http.MethodGet, "/", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}

// A path of the bound is one of a socket; one that is longer is refused in words.
func TestLongPaths(t *testing.T) {
	t.Parallel()
	dir := dirFor(t)
	longest := filepath.Join(dir, strings.Repeat("s", maxPath-len(dir)-1))
	l, err := Listen(longest)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := Listen(longest + "s"); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Errorf("a path of %d bytes: %v", maxPath+1, err)
	}
}
