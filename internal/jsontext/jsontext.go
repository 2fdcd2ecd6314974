// Package jsontext finds what encoding/json would replace in the strings of a JSON text: bytes that
// are not UTF-8, and halves of surrogate pairs. It reads U+FFFD for them without an error, so that a
// key, a value or a payload would be another one than the text says.
//
// Commands and the HTTP API, which take bytes of clients out of JSON, and package webhook, which takes
// names, call it behind their decoder.
package jsontext

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Check says where a valid JSON text has what a string cannot carry.
func Check(text []byte) error {
	for at := 0; at < len(text); {
		switch r, size := utf8.DecodeRune(text[at:]); {
		case r == utf8.RuneError && size == 1:
			return fmt.Errorf("not UTF-8 at byte %d", at+1)
		case r != '\\':
			at += size
		case !isSurrogate(text[at:]):
			at += 2 // the escape's letter is none of the characters above
		case !isPair(text[at:]):
			return fmt.Errorf("%s at byte %d is half of a surrogate pair and no character", text[at:at+escapeSize], at+1)
		default:
			at += 2 * escapeSize
		}
	}
	return nil
}

const escapeSize = len(`\uD800`)

// unit reads an escape of the form \uXXXX at the beginning of a text; ok: there is one.
func unit(text []byte) (r rune, ok bool) {
	if len(text) < escapeSize || !bytes.HasPrefix(text, []byte(`\u`)) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[2:escapeSize]), 16, 16)
	return rune(n), err == nil
}

func isSurrogate(text []byte) bool {
	r, ok := unit(text)
	return ok && utf16.IsSurrogate(r)
}

// isPair says whether a text that begins with a surrogate begins with both of a pair.
func isPair(text []byte) bool {
	first, _ := unit(text)
	second, ok := unit(text[escapeSize:])
	return ok && utf16.DecodeRune(first, second) != utf8.RuneError
}
