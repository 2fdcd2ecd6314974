package spans

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/header"
)

// MaxHeaders is how many headers may go with a request, those of the settings and of the file.
const MaxHeaders = 16

// ownHeaders are made by the exporter, or by the HTTP client.
var ownHeaders = []string{"Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Host", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// headers reads those that go with each request: of Headers, then of HeaderFile. The errors do not
// quote values, which are secrets.
func (o *Options) headers() (http.Header, error) {
	all := make(http.Header)
	for n, text := range o.Headers {
		if err := addHeader(all, text); err != nil {
			return nil, fmt.Errorf("--otlp-header, number %d: %w", n+1, err)
		}
	}
	if o.HeaderFile == "" {
		return all, nil
	}
	text, err := readSome(o.HeaderFile)
	if err != nil {
		return nil, fmt.Errorf("--otlp-header-file: %w", err)
	}
	for n, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if err := addHeader(all, line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", o.HeaderFile, n+1, err)
		}
	}
	return all, nil
}

func addHeader(all http.Header, text string) error {
	name, value, ok := header.Parse(text)
	if !ok {
		return fmt.Errorf("want a header of up to %d bytes, for example X-Api-Key=SECRET or Authorization: Bearer SECRET", header.MaxBytes)
	}
	name = http.CanonicalHeaderKey(name)
	switch {
	case slices.Contains(ownHeaders, name):
		return fmt.Errorf("the header %s cannot be set: the server makes it", name)
	case all[name] != nil:
		return fmt.Errorf("the header %s is given twice", name)
	case len(all) == MaxHeaders:
		return fmt.Errorf("more than %d headers", MaxHeaders)
	}
	all[name] = []string{value}
	return nil
}

// readSome reads a file that is not larger than all headers that there can be.
func readSome(name string) ([]byte, error) {
	const most = 2 * MaxHeaders * header.MaxBytes
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var text bytes.Buffer
	n, err := io.Copy(&text, io.LimitReader(file, most+1))
	if err == nil && n > most {
		err = fmt.Errorf("%s: more than %d bytes", name, most)
	}
	return text.Bytes(), err
}

// Reload reads the file of headers again. After an error the headers stay as they are.
func (e *Exporter) Reload() error {
	all, err := e.o.headers()
	if err == nil {
		e.headers.Store(&all)
	}
	return err
}
