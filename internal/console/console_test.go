package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
	"github.com/holdfast-mqtt/holdfast/internal/zipped"
)

// get asks for a file of the page.
func get(name string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, Prefix+name, nil)
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	Page().ServeHTTP(w, r)
	return w
}

// Each file is served with its type, and with a policy by which a browser runs nothing else and
// asks no other server.
func TestFiles(t *testing.T) {
	t.Parallel()
	for name, mediaType := range map[string]string{
		"":                 "text/html; charset=utf-8",
		"index.html":       "text/html; charset=utf-8",
		"console.css":      "text/css; charset=utf-8",
		"icon.svg":         "image/svg+xml",
		"js/app.js":        "text/javascript; charset=utf-8",
		"vendor/mqtt.js":   "text/javascript; charset=utf-8",
		"vendor/uplot.css": "text/css; charset=utf-8",
	} {
		w := get(name)
		h := w.Result().Header
		if w.Code != http.StatusOK || h.Get("Content-Type") != mediaType || w.Body.Len() == 0 {
			t.Errorf("%q: %d, %q, %d bytes", name, w.Code, h.Get("Content-Type"), w.Body.Len())
		}
		if csp := h.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';") || strings.Contains(csp, "unsafe") {
			t.Errorf("%q: Content-Security-Policy %q", name, csp)
		}
		for header, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"} {
			if got := h.Get(header); got != want {
				t.Errorf("%q: %s %q, want %q", name, header, got, want)
			}
		}
		again := get(name, func(r *http.Request) { r.Header.Set("If-None-Match", h.Get("ETag")) })
		if again.Code != http.StatusNotModified || again.Body.Len() != 0 {
			t.Errorf("%q with its ETag: %d, %d bytes", name, again.Code, again.Body.Len())
		}
	}
	for _, name := range []string{"nothing.js", "../console.go", "js", "js/", "vendor/mqtt", "%2e%2e/doc.go"} {
		if w := get(name); w.Code != http.StatusNotFound || w.Result().Header.Get("Content-Security-Policy") == "" {
			t.Errorf("%q: %d", name, w.Code)
		}
	}
	w := httptest.NewRecorder()
	Page().ServeHTTP(w, httptest.NewRequest(http.MethodPost, Prefix, strings.NewReader("x")))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// What is served, compressed and not, are the files of the directory web, and no others.
func TestServedFilesAreTheSources(t *testing.T) {
	t.Parallel()
	left := maps.Clone(served())
	delete(left, "")
	err := filepath.WalkDir("web", func(where string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(where), "web/")
		delete(left, name)
		source, err := os.ReadFile(where)
		if err != nil {
			return err
		}
		if plain := get(name); !bytes.Equal(plain.Body.Bytes(), source) {
			t.Errorf("%s is served as it was before: run go generate ./internal/console", name)
		}
		w := get(name, func(r *http.Request) { r.Header.Set("Accept-Encoding", "br, gzip") })
		if got := w.Result().Header.Get("Content-Encoding"); got != "gzip" {
			t.Errorf("%s: Content-Encoding %q", name, got)
		}
		if got, err := zipped.Plain(w.Body.Bytes()); err != nil || !bytes.Equal(got, source) {
			t.Errorf("%s, compressed, is another file (%v): run go generate ./internal/console", name, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range left {
		t.Errorf("%s is served and is not in web: run go generate ./internal/console", name)
	}
}

// What other projects have made is as they published it, and each has its licence.
func TestVendored(t *testing.T) {
	t.Parallel()
	sums, err := os.ReadFile("SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(sums)) {
		if sum, name, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			want[name] = sum
		}
	}
	there, err := filepath.Glob("web/vendor/*")
	if err != nil || len(there) == 0 {
		t.Fatal(there, err)
	}
	for _, file := range there {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		if name := filepath.Base(file); want[name] != hex.EncodeToString(sum[:]) {
			t.Errorf("%s is not the file of SHA256SUMS: run vendor.sh", file)
		} else {
			delete(want, name)
		}
	}
	for name := range want {
		t.Errorf("%s is missing: run vendor.sh", name)
	}
	for _, library := range []string{"htm", "preact", "uplot", "mqtt"} {
		licence, err := os.ReadFile(filepath.Join("web", "vendor", library+".LICENSE.txt"))
		if err != nil || !bytes.Contains(licence, []byte("Permission is hereby granted")) && !bytes.Contains(licence, []byte("Apache License")) {
			t.Errorf("the licence of %s: %v", library, err)
		}
	}
}

// The page asks no other server for anything, has no script or style in its markup, and never
// makes markup of text.
func TestPageIsSelfContained(t *testing.T) {
	t.Parallel()
	for name := range served() {
		if strings.HasPrefix(name, "vendor/") {
			continue
		}
		content := strings.ReplaceAll(get(name).Body.String(), `xmlns="http://www.w3.org/2000/svg"`, "")
		if found := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9.-]+\.[a-z]{2,}`).FindString(content); found != "" {
			t.Errorf("%s has an address of another server: %s", name, found)
		}
		if found := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`).FindString(content); found != "" {
			t.Errorf("%s uses %s", name, found)
		}
		if path.Ext(name) == ".html" {
			if found := regexp.MustCompile(`(?i)<script>|<style| style=| on[a-z]+=`).FindString(content); found != "" {
				t.Errorf("%s has %s, which its policy forbids", name, found)
			}
		}
	}
}

// openListener serves a Listener by an HTTP server of the test's.
func openListener(t *testing.T) (*Listener, string) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(Options{Addr: tcp.Addr(), Anonymous: true, Log: slog.New(slog.DiscardHandler)})
	server := &http.Server{Handler: l, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(tcp)
	}()
	t.Cleanup(func() {
		l.Close()
		server.Close()
		<-done
	})
	return l, tcp.Addr().String()
}

// dial connects as a page of origin does; empty: as a program that is no browser.
func dial(t *testing.T, addr, origin string) (*websocket.Conn, int) {
	t.Helper()
	o := &websocket.DialOptions{Subprotocols: []string{"mqtt"}, HTTPHeader: http.Header{}}
	if origin != "" {
		o.HTTPHeader.Set("Origin", origin)
	}
	ctx, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	ws, response, err := websocket.Dial(ctx, "ws://"+addr+SocketPath, o)
	if response == nil {
		t.Fatal(err)
	}
	return ws, response.StatusCode
}

// The broker gets the connection of a page, learns where it came in, and reads what the page
// sends.
func TestConnection(t *testing.T) {
	t.Parallel()
	l, addr := openListener(t)
	for origin, status := range map[string]int{"https://" + addr: 403, "http://evil.example.com": 403, "null": 403, "http://localhost:1": 403} {
		if _, got := dial(t, addr, origin); got != status {
			t.Errorf("a page of %s: %d, want %d", origin, got, status)
		}
	}
	if n := l.Open(); n != 0 {
		t.Errorf("%d connections are open after refusals", n)
	}
	ws, status := dial(t, addr, "http://"+addr)
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", status)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	origin := access.OriginOf(nc)
	if origin.Listener == nil || origin.Listener.Name != "console" || !origin.Listener.Anonymous || origin.TLS != nil || !strings.HasPrefix(origin.String(), "127.0.0.1:") {
		t.Errorf("it came in at %+v", origin)
	}
	if err := ws.Write(t.Context(), websocket.MessageBinary, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(nc, got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	if n := l.Open(); n != 1 {
		t.Errorf("%d connections are open", n)
	}
	ws.CloseNow()
	sockets.Close(nc)
	if n := l.Open(); n != 0 {
		t.Errorf("%d connections are open when all are closed", n)
	}
}

// One page more than the bound is refused; it connects when another one has left.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	l, addr := openListener(t)
	var conns []net.Conn
	for i := range MaxConnections {
		ws, status := dial(t, addr, "http://"+addr)
		if status != http.StatusSwitchingProtocols {
			t.Fatalf("page %d: %d", i+1, status)
		}
		defer ws.CloseNow()
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, nc)
	}
	if _, status := dial(t, addr, "http://"+addr); status != http.StatusServiceUnavailable {
		t.Errorf("one page more: %d", status)
	}
	if l.Refused() != 1 || l.Open() != MaxConnections {
		t.Errorf("%d refused, %d open", l.Refused(), l.Open())
	}
	if err := sockets.Close(conns[0]); err != nil {
		t.Error(err)
	}
	ws, status := dial(t, addr, "http://"+addr)
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("in the place of one that has left: %d", status)
	}
	ws.CloseNow()
	if nc, err := l.Accept(); err == nil {
		sockets.Close(nc)
	}
	for _, nc := range conns[1:] {
		sockets.Close(nc)
	}
}

// On a node of a cluster that does not lead, and on a server that starts, the page learns why it
// cannot connect.
func TestClosedDoor(t *testing.T) {
	t.Parallel()
	for want, reasons := range map[string][]string{
		"this node of a cluster does not lead": nil,
		"the data is being read; and more":     {"the data is being read", "and more"},
	} {
		var door Door
		w := httptest.NewRecorder()
		door.Handler(func() []string { return reasons }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, SocketPath, nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%d %q, want %q", w.Code, w.Body, want)
		}
	}
}
