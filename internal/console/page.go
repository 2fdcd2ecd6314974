package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/holdfast-mqtt/holdfast/internal/zipped"
)

// Prefix begins the paths of the page's files.
const Prefix = "/console/"

// files are those of the directory web, each compressed. Those in vendor are other projects',
// unchanged: see vendor.sh.
//
//go:generate go run ../zipped/renew web zipped
//go:embed zipped
var files embed.FS

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
	zipped    []byte
	mediaType string
	etag      string
}

// served are the files by their names, made at the first request.
var served = sync.OnceValue(func() map[string]*file {
	all := map[string]*file{}
	err := fs.WalkDir(files, "zipped", func(where string, entry fs.DirEntry, err error) error {
		name := strings.TrimSuffix(strings.TrimPrefix(where, "zipped/"), ".gz")
		mediaType := types[path.Ext(name)]
		if err != nil || entry.IsDir() || mediaType == "" {
			return err
		}
		content, err := files.ReadFile(where)
		sum := sha256.Sum256(content)
		all[name] = &file{zipped: content, mediaType: mediaType, etag: `W/"` + hex.EncodeToString(sum[:12]) + `"`} // weak: it is that of both forms
		return err
	})
	if err != nil {
		panic("the files of the console, which are part of the program, cannot be read: " + err.Error())
	}
	all[""] = all["index.html"]
	return all
})

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
	f := served()[name]
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
	if r.Header.Get("If-None-Match") == f.etag {
		h.Set("Vary", "Accept-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.mediaType)
	zipped.Serve(w, r, f.zipped)
}
