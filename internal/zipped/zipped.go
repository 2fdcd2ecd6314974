// Package zipped answers requests with files that the program holds compressed by gzip, which
// makes it smaller: a client that accepts gzip gets the bytes as they are, another one gets them
// decompressed. The program internal/zipped/renew compresses the files, by go generate.
package zipped

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Serve answers with a file, of which zipped is the gzip; the caller has set the Content-Type. A
// request by HEAD gets the header only. It is safe for concurrent use.
func Serve(w http.ResponseWriter, r *http.Request, zipped []byte) {
	h := w.Header()
	h.Add("Vary", "Accept-Encoding")
	var content io.Reader = bytes.NewReader(zipped)
	if Accepted(r) {
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Length", strconv.Itoa(len(zipped)))
	} else {
		content = plain(zipped)
	}
	if r.Method != http.MethodHead {
		_, _ = io.Copy(w, content)
	}
}

// Accepted says whether the client accepts gzip (RFC 9110, section 12.5.3).
func Accepted(r *http.Request) bool {
	any := false
	for _, line := range r.Header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(line, ",") {
			coding, weight, _ := strings.Cut(part, ";")
			_, q, _ := strings.Cut(strings.TrimSpace(weight), "=")
			refused := strings.Trim(q, "0.") == "" && q != ""
			switch strings.ToLower(strings.TrimSpace(coding)) {
			case "gzip":
				return !refused
			case "*":
				any = !refused
			}
		}
	}
	return any
}

// Plain gives the bytes of which zipped is the gzip.
func Plain(zipped []byte) ([]byte, error) {
	content, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(content)
}

// plain decompresses what is part of the program.
func plain(zipped []byte) io.Reader {
	content, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		panic(fmt.Sprintf("a file that is part of the program is no gzip: %v", err))
	}
	return content
}
