package spans

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/header"
)

// Each request to the collector has the headers of the settings and those of the file, as it was
// read last.
func TestHeadersGoWithRequests(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }))
	t.Cleanup(collector.Close)
	file := filepath.Join(t.TempDir(), "headers")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# of the tenant\r\n\r\nAuthorization: Bearer first=\r\n")
	e := exporter(t, Options{Endpoint: collector.URL, Headers: []string{"x-tenant=plant: 7"}, HeaderFile: file})
	want := func(authorization string) {
		t.Helper()
		s := e.Begin([]byte(sampled), nil)
		s.Describe("GET", "client", nil)
		s.End("ok", "")
		select {
		case h := <-seen:
			if h.Get("X-Tenant") != "plant: 7" || h.Get("Authorization") != authorization || h.Get("Content-Type") != "application/json" {
				t.Errorf("the request has the headers %v", h)
			}
		case <-time.After(deadline):
			t.Fatal("no spans came")
		}
	}
	want("Bearer first=")
	write("Authorization: Bearer second\n")
	if err := e.Reload(); err != nil {
		t.Fatal(err)
	}
	want("Bearer second")
	write("Authorization\n")
	if err := e.Reload(); err == nil || !strings.HasPrefix(err.Error(), file+":1: want a header") {
		t.Errorf("a file without a header: %v", err)
	}
	want("Bearer second")
}

// Headers are for the collector of the settings: another one to which it redirects gets nothing.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	t.Cleanup(other.Close)
	done := make(chan struct{}, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		done <- struct{}{}
	}))
	t.Cleanup(collector.Close)
	e, err := New(Options{Endpoint: collector.URL, Headers: []string{"X-Api-Key=secret"}})
	if err != nil {
		t.Fatal(err)
	}
	s := e.Begin([]byte(sampled), nil)
	s.Describe("GET", "client", nil)
	s.End("ok", "")
	select {
	case <-done:
	case <-time.After(deadline):
		t.Fatal("no spans came")
	}
	e.Close(t.Context())
	if sent, _, failed := e.Counts(); sent != 0 || failed != 1 {
		t.Errorf("sent %d, failed %d; want one that failed", sent, failed)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	numbered := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("X-%d=v", i))
		}
		return all
	}
	dir := t.TempDir()
	file := func(text string) string {
		f, err := os.CreateTemp(dir, "headers")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		return f.Name()
	}
	const collector = "http://localhost:4318"
	for want, o := range map[string]Options{
		"":                                  {Endpoint: collector, Headers: numbered(MaxHeaders - 1), HeaderFile: file("Last: one\n")},
		"more than 16 headers":              {Endpoint: collector, Headers: numbered(MaxHeaders), HeaderFile: file("Last: one\n")},
		"--otlp-header, number 17":          {Endpoint: collector, Headers: numbered(MaxHeaders + 1)},
		"up to 8192 bytes":                  {Endpoint: collector, Headers: []string{"X=" + strings.Repeat("v", header.MaxBytes)}},
		"number 2: want a header":           {Endpoint: collector, Headers: []string{"A=b", "secret"}},
		"X-A is given twice":                {Endpoint: collector, Headers: []string{"x-a=1", "X-A=2"}},
		"Content-Type cannot be set":        {Endpoint: collector, Headers: []string{"content-type=text/plain"}},
		":3: the header Host cannot be set": {Endpoint: collector, HeaderFile: file("# a\nA: b\nHost: x\n")},
		"--otlp-header-file: open ":         {Endpoint: collector, HeaderFile: filepath.Join(dir, "missing")},
		"more than 262144 bytes":            {Endpoint: collector, HeaderFile: file(strings.Repeat("#\n", 131_073))},
		"have no meaning without":           {Headers: []string{"A=b"}},
		"--otlp-header-file have no":        {HeaderFile: file("A: b\n")},
	} {
		err := o.Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("it shows a secret: %v", err)
		}
	}
}
