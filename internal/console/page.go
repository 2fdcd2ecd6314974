package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
)

// Prefix begins the paths of the page's files.
const Prefix = "/console/"

// web are the files. Those in web/vendor are other projects', unchanged: see vendor.sh.
//
//go:embed web
var web embed.FS

// policy is what the page may do in a browser: load files of its own server, and connect to
// it. Nothing that keys, values and messages have in them is ever run, or fetched.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// types are the media types of the files, by the ends of their names. Other files are not
// served.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// file is one that is served.
type file struct {
	content   []byte
	mediaType string
	etag      string
	zipped    func() []byte // by gzip
}

// files are made at the first request.
var files = sync.OnceValue(func() map[string]*file {
	all := map[string]*file{}
	err := fs.WalkDir(web, "web", func(name string, entry fs.DirEntry, err error) error {
		mediaType := types[path.Ext(name)]
		if err != nil || entry.IsDir() || mediaType == "" {
			return err
		}
		content, err := web.ReadFile(name)
		sum := sha256.Sum256(content)
		all[strings.TrimPrefix(name, "web/")] = &file{
			content: content, mediaType: mediaType, etag: `"` + hex.EncodeToString(sum[:12]) + `"`,
			zipped: sync.OnceValue(func() []byte { return zip(content) }),
		}
		return err
	})
	if err != nil {
		panic("the files of the console, which are part of the program, cannot be read: " + err.Error())
	}
	all[""] = all["index.html"]
	return all
})

func zip(content []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(content) // to memory
	_ = w.Close()
	return out.Bytes()
}

// Page serves the files below Prefix. It is safe for concurrent use.
func Page() http.Handler { return http.HandlerFunc(servePage) }

func servePage(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	name, below := strings.CutPrefix(r.URL.Path, Prefix)
	f := files()[name]
	switch {
	case !below || f == nil:
		http.NotFound(w, r)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the files of the console can only be read", http.StatusMethodNotAllowed)
		return
	}
	h.Set("ETag", f.etag)
	h.Set("Cache-Control", "no-cache") // the next program has other files
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.mediaType)
	content := f.content
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		content = f.zipped()
	}
	if r.Method == http.MethodGet {
		_, _ = w.Write(content)
	}
}
