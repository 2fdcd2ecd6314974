package interop

import (
	"bufio"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/services/leasedlock"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
	storeerrors "github.com/Azure/iot-operations-sdks/go/services/statestore/errors"
)

// Our own leases and the SDK's on the same key exclude each other, wake each
// other, and fence each other. Our side is `holdfast lock`, driven from outside
// like every other client here.

// holder is a `holdfast lock` that holds, or waits for, a lock.
type holder struct {
	args   []string
	cmd    *exec.Cmd
	stop   io.Closer   // its command ends well when this is closed
	token  chan string // gets the fencing token once it holds the lock
	held   bool        // by mustHold
	errors *output
	exited chan struct{}
}

// lockWithHoldfast starts `holdfast lock NAME` on a command that goes on until
// the holder is told to stop.
func lockWithHoldfast(t *testing.T, s *server, name string, flags ...string) *holder {
	t.Helper()
	args := slices.Concat([]string{"lock", "-v"}, reach(t, s), []string{name}, flags,
		[]string{"--", "sh", "-c", `echo "$HOLDFAST_LOCK_TOKEN"; cat >/dev/null`})
	h := &holder{args: args}
	h.start(t)
	t.Cleanup(func() {
		_ = h.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-h.exited:
		case <-time.After(patience):
			t.Errorf("holdfast lock is still running long after SIGTERM; it said: %s", h.errors)
			_ = h.cmd.Process.Kill()
			<-h.exited
		}
	})
	return h
}

// reach are the flags with which our commands connect to a server.
func reach(t *testing.T, s *server) []string {
	t.Helper()
	host, port, err := net.SplitHostPort(s.tcp)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"-n", host, "-p", port}
}

// start runs the program, which has not been run or has ended.
func (h *holder) start(t *testing.T) {
	t.Helper()
	cmd, token, exited := exec.Command(binary, h.args...), make(chan string, 1), make(chan struct{})
	h.cmd, h.token, h.exited = cmd, token, exited
	h.errors = &output{changed: make(chan struct{}, 1)}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.stop, cmd.Stderr = in, h.errors
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(exited)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case token <- lines.Text():
			default: // the test reads one token: a second line must not block this goroutine
			}
		}
		_ = cmd.Wait()
	}()
}

func (h *holder) startAgain(t *testing.T) {
	t.Helper()
	t.Logf("starting holdfast lock again, which said: %s", h.errors)
	h.start(t)
}

// endedByFailover says whether one of our commands has ended because the node that it connects to was down, or was
// killed meanwhile: then it is for the caller to run it again.
func endedByFailover(said string) bool {
	return underFailovers && (strings.Contains(said, "cannot reach") || strings.Contains(said, "connection lost"))
}

// mustHold waits until it holds the lock, and gives the fencing token.
func (h *holder) mustHold(t *testing.T, what string) string {
	t.Helper()
	for end := time.After(patience); ; {
		select {
		case token := <-h.token:
			h.held = true
			return token
		case <-h.exited:
			if len(h.token) > 0 {
				continue
			}
			if !endedByFailover(h.errors.String()) {
				t.Fatalf("%s: holdfast lock has ended (%v) and never held it; it said: %s", what, h.cmd.ProcessState, h.errors)
			}
			h.startAgain(t)
		case <-end:
			t.Fatalf("not within %v: %s; holdfast lock said: %s", patience, what, h.errors)
		}
	}
}

// mustExit waits for the end of `holdfast lock`.
func (h *holder) mustExit(t *testing.T, want int) {
	t.Helper()
	for {
		select {
		case <-h.exited:
		case <-time.After(patience):
			t.Fatalf("holdfast lock goes on; it said: %s", h.errors)
		}
		if !h.held && endedByFailover(h.errors.String()) {
			h.startAgain(t)
			continue
		}
		if code := h.cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("holdfast lock ended with status %d, want %d; it said: %s", code, want, h.errors)
		}
		return
	}
}

// holdfast runs one of our commands on a server.
func holdfast(t *testing.T, s *server, command string, args ...string) (out string, err error) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		out, err := exec.Command(binary, slices.Concat([]string{command}, reach(t, s), args)...).CombinedOutput()
		if err == nil || !endedByFailover(string(out)) || time.Now().After(end) {
			return string(out), err
		}
	}
}

func TestSDKLockAndHoldfastLockExcludeEachOther(t *testing.T) {
	t.Parallel()
	s, name := shared(t), uniqueKey("both")
	sdk := connectSDK(t, s)
	l := newLock(sdk, name)

	// Given our lock, the SDK's can't be acquired, and shows the holder.
	ours := lockWithHoldfast(t, s, name, "--holder", "ours")
	ours.mustHold(t, "our lock")
	if acquire(t, l.Lease, time.Minute) {
		t.Fatal("the SDK acquired what we hold")
	}
	mustBeHeldBy(t, l.Lease, "ours")

	// When ours is released the SDK's lock, which waits, is woken.
	locked := make(chan error, 1)
	go func() { locked <- l.Lock(deadline(t), time.Hour) }()
	if err := ours.stop.Close(); err != nil {
		t.Fatal(err)
	}
	ours.mustExit(t, 0)
	if err := receive(t, locked, "the SDK's Lock after our release"); err != nil {
		t.Fatalf("the SDK locks: %v", err)
	}

	// Then ours can't be had, at once or in a while; and it is woken by the SDK's
	// release.
	mustBeHeldBy(t, l.Lease, sdk.ID())
	lockWithHoldfast(t, s, name, "--wait", "0").mustExit(t, 1)
	next := lockWithHoldfast(t, s, name)
	eventually(t, "ours waits", func() bool { return len(next.errors.String()) > 0 })
	if err := l.Unlock(deadline(t)); err != nil {
		t.Fatalf("the SDK unlocks: %v", err)
	}
	next.mustHold(t, "our lock after the SDK's release")
}

// A token of ours fences the SDK's former holder, and the other way round.
func TestSDKLockAndHoldfastLockFenceEachOther(t *testing.T) {
	t.Parallel()
	s, name, protected := shared(t), uniqueKey("fenced"), uniqueKey("protected")
	sdk := connectSDK(t, s)
	l := newLock(sdk, name)
	if err := l.Lock(deadline(t), time.Minute); err != nil {
		t.Fatal(err)
	}
	before := token(t, l.Lease)
	if err := l.Unlock(deadline(t)); err != nil {
		t.Fatal(err)
	}

	ours := lockWithHoldfast(t, s, name)
	fence := ours.mustHold(t, "our lock")
	if out, err := holdfast(t, s, "set", "--fencing-token", fence, protected, "ours"); err != nil {
		t.Fatalf("our guarded write: %v\n%s", err, out)
	}
	_, err := sdk.Set(deadline(t), protected, "the SDK's, too late", statestore.WithFencingToken(before))
	mustFailWith(t, "the SDK's former holder writes", err, storeerrors.FencingTokenLowerVersion)

	_ = ours.stop.Close()
	ours.mustExit(t, 0)
	if err := l.Lock(deadline(t), time.Minute); err != nil {
		t.Fatal(err)
	}
	sdk.set(t, protected, "the SDK's", statestore.WithFencingToken(token(t, l.Lease)))
	if out, err := holdfast(t, s, "set", "--fencing-token", fence, protected, "ours, too late"); err == nil {
		t.Errorf("our former holder wrote: %s", out)
	}
	if value, _ := sdk.get(t, protected); value != "the SDK's" {
		t.Errorf("the protected key holds %q", value)
	}
}

// An SDK lease that expires passes on to us; one of ours that is broken by the
// SDK ends our command.
func TestSDKLeaseExpiresAndBreaks(t *testing.T) {
	t.Parallel()
	s, name := shared(t), uniqueKey("expires")
	sdk := connectSDK(t, s)
	l := newLock(sdk, name, leasedlock.WithSessionID("session"))
	if !acquire(t, l.Lease, 300*time.Millisecond) {
		t.Fatal("the SDK could not acquire a free lease")
	}
	ours := lockWithHoldfast(t, s, name, "--ttl", "1h")
	ours.mustHold(t, "our lock after the SDK's has expired")

	sdk.set(t, name, sdk.ID()) // takes it, regardless of whose it is
	ours.mustExit(t, 2)
	if value, _ := sdk.get(t, name); value != sdk.ID() {
		t.Errorf("the key holds %q after our end, want what took it", value)
	}
}
