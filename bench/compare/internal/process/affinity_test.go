package process

import (
	"os/exec"
	"strings"
	"testing"
)

// A process uses the processors that it was started on, and others are started as before.
func TestAProcessUsesItsHalf(t *testing.T) {
	t.Parallel()
	one, other, ok := Halves()
	if !ok {
		t.Skip("this process may use only one processor, which has no two halves")
	}
	allowed := func(p Processors) (list string) {
		t.Helper()
		err := On(p, func() error {
			out, err := exec.Command("grep", "Cpus_allowed_list", "/proc/self/status").Output()
			list = strings.TrimSpace(string(out))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	all := allowed(nil)
	if a, b := allowed(one), allowed(other); a == b || a == all || b == all {
		t.Errorf("the halves %q and %q of %q", a, b, all)
	}
	if again := allowed(nil); again != all {
		t.Errorf("processes are started on %q afterwards, and were on %q", again, all)
	}
}
