package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// Of several addresses a command takes the first that answers.
func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	k := key(t)
	here := testserver.FreeAddress() + ",127.0.0.1:" + port
	alone := func(args ...string) result { t.Helper(); return start(t, exec.Command(binary, args...), nil) }
	alone("set", "-n", here, k, "v").want(t, "set", 0, "", "")
	alone("get", "-n", here, k).want(t, "get", 0, "v", "")
	alone("get", "-n", testserver.FreeAddress()+", mqtt://127.0.0.1:"+port, k).want(t, "a space and a URL", 0, "v", "")
	alone("get", "-n", "127.0.0.1:"+port, k).want(t, "a port with the host", 0, "v", "")
	alone("get", "-n", "nowhere.invalid,127.0.0.1", "-p", port, k).want(t, "hosts with one port", 0, "v", "")
	alone("pub", "-n", here, "-r", k, "kept").want(t, "pub", 0, "", "")
	alone("sub", "-n", here, "--count", "1", k).want(t, "sub", 0, "kept\n", "")
	alone("pub", "-n", here, "-r", k, "").want(t, "pub", 0, "", "")
	if r := alone("bench", "pub", "-n", here, "--clients", "1", "--for", "10ms", "--json"); r.code != 0 {
		t.Errorf("bench: status %d, %s", r.code, r.err)
	}
	holdfastIn(t, "HOLDFAST_PORT=1 HOLDFAST_HOST=nowhere.invalid", "get", "-n", here, k).want(t, "the flag's ports win", 0, "v", "")

	holdfastIn(t, "HOLDFAST_HOST="+here, "get", k).want(t, "a variable", 0, "v", "")

	a, b := testserver.FreeAddress(), testserver.FreeAddress()
	dead := a + "," + b
	alone("get", "-n", dead, k).want(t, "nodes that are dead", 2, "", "cannot reach "+dead+": connection refused; is a server running?")
	alone("pub", "-n", dead, k, "").want(t, "nodes that are dead", 2, "", "cannot reach "+dead+": connection refused; is a server running?")
	alone("get", "-n", "nowhere.invalid,"+b, k).want(t, "two causes", 2, "", "cannot reach nowhere.invalid:1883: no such host; cannot reach "+b+": connection refused")
	alone("get", "-n", here, "-p", port, k).want(t, "ports twice", 2, "", "--port and an address with a port in --hostname exclude each other")
	alone("get", "-n", "127.0.0.1:"+port+",", k).want(t, "an empty address", 2, "", "names no host")
	alone("get", "-n", "127.0.0.1:"+port+",b:99999", k).want(t, "a port that is none", 2, "", "port 99999: want a number from 1 to 65535")
	alone("get", "-n", strings.Repeat("127.0.0.1:1,", 31)+"127.0.0.1:"+port, k).want(t, "as many addresses as may be", 0, "v", "")
	for _, command := range []string{"get", "sub"} {
		alone(command, "-n", strings.Repeat("127.0.0.1:1,", 5000)+"127.0.0.1:"+port, k).want(t, "too many addresses", 2, "", "5001 addresses: want at most 32")
	}
}

// A subscription goes on at another node when its own dies.
func TestSubGoesOnAtAnotherNode(t *testing.T) {
	t.Parallel()
	first, second := serveIn(t, t.TempDir()), serveIn(t, t.TempDir())
	s := startUntil(t, "subscribed to", exec.Command(binary, "sub", "-v", "-n", "127.0.0.1:"+first.Port()+",127.0.0.1:"+second.Port(), "--count", "2", "t"))
	first.run("pub", "t", "from the first").want(t, "pub", 0, "", "")
	if got := <-s.lines; got != "t from the first" {
		t.Fatalf("printed %q", got)
	}
	first.Kill()
	if !s.await("connected and subscribed again") {
		t.Fatal("it has ended")
	}
	second.run("pub", "t", "from the second").want(t, "pub", 0, "", "")
	if got := strings.Join(s.finish(t), ";"); got != "t from the second" {
		t.Errorf("printed %q", got)
	}
}
