package zipped

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func zip(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A client gets gzip if it says that it accepts that, and the file itself otherwise.
func TestServe(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("some text. ", 1000)
	zipped := zip(t, text)
	for accept, compressed := range map[string]bool{
		"": false, "gzip": true, "gzip, deflate, br, zstd": true, "br;q=1.0, GZIP;q=0.8": true, "br": false, "*": true,
		"gzip;q=0": false, "gzip; q=0.0, br": false, "*;q=0": false, "gzip;q=0, *": false, "x-gzipped": false, "gzip;q=0.05": true,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if accept != "" {
			r.Header.Set("Accept-Encoding", accept)
		}
		w := httptest.NewRecorder()
		Serve(w, r, zipped)
		h := w.Result().Header
		if got := h.Get("Content-Encoding") == "gzip"; got != compressed || h.Get("Vary") != "Accept-Encoding" {
			t.Errorf("Accept-Encoding %q: compressed %v, want %v; Vary %q", accept, got, compressed, h.Get("Vary"))
		}
		got := w.Body.Bytes()
		if compressed {
			var err error
			if got, err = Plain(got); err != nil {
				t.Fatal(err)
			}
		}
		if string(got) != text {
			t.Errorf("Accept-Encoding %q: %d bytes, want %d", accept, len(got), len(text))
		}
	}
	w := httptest.NewRecorder()
	Serve(w, httptest.NewRequest(http.MethodHead, "/", nil), zipped)
	if w.Body.Len() != 0 {
		t.Errorf("HEAD is answered with %d bytes", w.Body.Len())
	}
}

func TestPlainOfWhatIsNoGzip(t *testing.T) {
	t.Parallel()
	whole := zip(t, "text")
	for _, bytes := range [][]byte{nil, []byte("text"), whole[:len(whole)-1]} {
		if got, err := Plain(bytes); err == nil {
			t.Errorf("%q: %q, want an error", bytes, got)
		}
	}
}
