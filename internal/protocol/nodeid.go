package protocol

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CheckNodeID says why a text can't be the node ID of a store: its versions would
// not be what hlc.Parse reads, and what fits into the user properties that carry
// them (protocol, section 4).
func CheckNodeID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("a node ID has at least one character")
	case len(id) > MaxNodeID:
		return fmt.Errorf("a node ID has at most %d bytes, this one has %d", MaxNodeID, len(id))
	case strings.Contains(id, ":"):
		return fmt.Errorf("a node ID has no colon: it stands between the parts of a version")
	case !utf8.ValidString(id):
		return fmt.Errorf("a node ID is UTF-8")
	case strings.ContainsFunc(id, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }):
		return fmt.Errorf("a node ID has no blanks and no control characters")
	}
	return nil
}
