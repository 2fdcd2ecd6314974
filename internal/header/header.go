// Package header reads headers of HTTP requests from settings and files of the operator's. The
// webhook and the exporter of spans call it; it sends nothing.
package header

import "strings"

// MaxBytes is how long a header may be, its name and value together.
const MaxBytes = 8 << 10

// Parse reads a header: NAME: VALUE or NAME=VALUE. ok is false if there is none, or one that may not
// be sent: its name is a token (RFC 9110, section 5.6.2), its value is not empty and has no control
// character, and both take MaxBytes at most.
func Parse(text string) (name, value string, ok bool) {
	text = strings.TrimSpace(text)
	end := strings.IndexAny(text, ":=")
	if end < 1 {
		return "", "", false
	}
	name, value = text[:end], strings.TrimSpace(text[end+1:])
	return name, value, isToken(name) && value != "" && len(name)+len(value) <= MaxBytes &&
		strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == 0x7F }) < 0
}

func isToken(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return true
}
