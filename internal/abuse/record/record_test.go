package record_test

import (
	"os"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/abuse"
	"github.com/holdfast-mqtt/holdfast/internal/abuse/record"
)

func TestTable(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/document.md"
	text := "before\n<!-- attacks: written by make abuse -->\nold\n<!-- end of attacks -->\nafter\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var r record.Record
	r.Add("before", "0123456", &abuse.Result{Name: "large filters", Peak: 1400 << 20, Left: 1300 << 20, Operator: "gone"})
	r.Add("after", "6543210", &abuse.Result{Name: "large filters", Peak: 100 << 20, AtRest: true, StoppedIn: true})
	if err := r.Insert(file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n<!--", "| before | 1400 MiB, 1300 MiB |", "| yes, **no** |", "| after | 100 MiB, 0 MiB |", "-->\nafter\n"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("the document is\n%s\nwithout %q", got, want)
		}
	}
}
