package remote

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
)

// serve serves requests with write, and gives what sends them.
func serve(t *testing.T, write func(dir string, copies bool, progress func(backup.Progress)) (Result, error)) func(io.Reader) (io.ReadCloser, error) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { Serve(w, r, write) }))
	t.Cleanup(s.Close)
	return func(body io.Reader) (io.ReadCloser, error) {
		q, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.URL, body)
		if err != nil {
			return nil, err
		}
		a, err := s.Client().Do(q)
		if err != nil {
			return nil, err
		}
		if a.StatusCode != http.StatusOK {
			_ = a.Body.Close()
			return nil, errors.New(a.Status)
		}
		return a.Body, nil
	}
}

func TestBackupThatIsAskedFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := Result{Progress: backup.Progress{Files: 2, OfFiles: 2, Bytes: 7, OfBytes: 7}, Node: "a", Entry: 42}
	post := serve(t, func(to string, copies bool, progress func(backup.Progress)) (Result, error) {
		if to != dir || !copies {
			t.Errorf("asked for %s, copies %v", to, copies)
		}
		progress(backup.Progress{Files: 1, OfFiles: 2})
		return want, nil
	})
	var seen []backup.Progress
	got, err := Ask(post, dir, true, func(p backup.Progress) { seen = append(seen, p) })
	if err != nil || got != want || len(seen) != 1 || seen[0].Files != 1 {
		t.Errorf("got %+v, %v; on the way %+v", got, err, seen)
	}
}

func TestBackupThatFails(t *testing.T) {
	t.Parallel()
	fails := serve(t, func(string, bool, func(backup.Progress)) (Result, error) {
		return Result{}, errors.New("the disk is full")
	})
	if _, err := Ask(fails, t.TempDir(), false, nil); err == nil || err.Error() != "the disk is full" {
		t.Errorf("an error: %v", err)
	}
	ends := serve(t, func(string, bool, func(backup.Progress)) (Result, error) { panic(http.ErrAbortHandler) })
	if _, err := Ask(ends, t.TempDir(), false, nil); err == nil {
		t.Error("the program has ended, and the backup is said to be done")
	}
	for name, body := range map[string]string{
		"nothing":         "",
		"no JSON":         "x",
		"a relative path": `{"Dir": "backups"}`,
		"a long path":     `{"Dir": "/` + strings.Repeat("x", maxRequest) + `"}`,
	} {
		if _, err := fails(strings.NewReader(body)); err == nil || !strings.HasPrefix(err.Error(), "400") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, answer := range map[string]string{"no JSON": "x\n", "the end": "", "progress, and the end": `{"Progress":{"Files":1}}` + "\n"} {
		_, err := Ask(func(io.Reader) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(answer)), nil }, filepath.Join("a", "b"), false, func(backup.Progress) {})
		if err == nil {
			t.Errorf("%s is taken for a backup", name)
		}
	}
}
