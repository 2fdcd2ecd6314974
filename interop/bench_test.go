package interop

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A broker without a state store acknowledges requests and answers none: bench says so after
// the first one, and names the load that any broker takes.
func TestBenchOfABrokerWithoutAStore(t *testing.T) {
	t.Parallel()
	b := runMosquitto(t, "")
	address := b.mosquitto.server.tcp
	eventually(t, "Mosquitto listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	_, port, _ := net.SplitHostPort(address)
	bench := func(load string) (string, error) {
		cmd := exec.Command(binary, "bench", load, "--port", port, "--for", "100ms", "--timeout", "2s")
		cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "HOLDFAST_") }) // of the server that tests share, which may have TLS
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, load := range []string{"set", "get"} {
		const want = "holdfast bench: no state store has answered a first request within 2s; does this broker have one? holdfast bench pub measures any broker\n"
		if got, err := bench(load); err == nil || got != want {
			t.Errorf("%s: %q, %v; want %q", load, got, err, want)
		}
	}
	if got, err := bench("pub"); err != nil || !strings.Contains(got, "acknowledged") {
		t.Errorf("pub: %q, %v", got, err)
	}
}
