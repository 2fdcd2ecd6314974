package serve

import (
	"fmt"
	"strings"
	"testing"
)

// stacked is an error that prints a stack with %+v, as those of Pebble's file system do.
type stacked struct{}

func (stacked) Error() string { return "too many open files" }

func (s stacked) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprint(f, s.Error())
	if f.Flag('+') {
		_, _ = fmt.Fprint(f, "\nstack trace")
	}
}

// The log has of an error what its message says, in both forms.
func TestErrorsHaveNoStackInTheLog(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"text", "json"} {
		var out strings.Builder
		l := logFlags{format: form}
		log, flush := l.open(&out)
		log.Error("a table", "error", stacked{})
		flush()
		if said := out.String(); !strings.Contains(said, "too many open files") || strings.Contains(said, "stack") {
			t.Errorf("%s: %s", form, said)
		}
	}
}
