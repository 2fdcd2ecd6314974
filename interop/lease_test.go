package interop

import (
	"bufio"
	"io"
	"net"
	"os/exec"
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
	cmd    *exec.Cmd
	stop   io.Closer   // its command ends well when this is closed
	token  chan string // gets the fencing token once it holds the lock
	errors *output
	exited chan struct{}
}

// lockWithHoldfast starts `holdfast lock NAME` on a command that goes on until
// the holder is told to stop.
func lockWithHoldfast(t *testing.T, s *server, name string, flags ...string) *holder {
	t.Helper()
	_, port, err := net.SplitHostPort(s.tcp)
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"lock", "-v", "-n", "127.0.0.1", "-p", port, name}, flags...)
	args = append(args, "--", "sh", "-c", `echo "$HOLDFAST_LOCK_TOKEN"; cat >/dev/null`)
	h := &holder{
		cmd:    exec.Command(binary, args...),
		token:  make(chan string, 1),
		errors: &output{changed: make(chan struct{}, 1)},
		exited: make(chan struct{}),
	}
	in, err := h.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.stop, h.cmd.Stderr = in, h.errors
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(h.exited)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case h.token <- lines.Text():
			default: // the test reads one token: a second line must not block this goroutine
			}
		}
		_ = h.cmd.Wait()
	}()
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

// mustExit waits for the end of `holdfast lock`.
func (h *holder) mustExit(t *testing.T, want int) {
	t.Helper()
	select {
	case <-h.exited:
	case <-time.After(patience):
		t.Fatalf("holdfast lock goes on; it said: %s", h.errors)
	}
	if code := h.cmd.ProcessState.ExitCode(); code != want {
		t.Errorf("holdfast lock ended with status %d, want %d; it said: %s", code, want, h.errors)
	}
}

func TestSDKLockAndHoldfastLockExcludeEachOther(t *testing.T) {
	t.Parallel()
	s, name := shared(t), uniqueKey("both")
	sdk := connectSDK(t, s)
	l := newLock(sdk, name)

	// Given our lock, the SDK's can't be acquired, and shows the holder.
	ours := lockWithHoldfast(t, s, name, "--holder", "ours")
	receive(t, ours.token, "our lock")
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
	receive(t, next.token, "our lock after the SDK's release")
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
	fence := receive(t, ours.token, "our lock")
	_, port, _ := net.SplitHostPort(s.tcp)
	set := exec.Command(binary, "set", "-n", "127.0.0.1", "-p", port, "--fencing-token", fence, protected, "ours")
	if out, err := set.CombinedOutput(); err != nil {
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
	late := exec.Command(binary, "set", "-n", "127.0.0.1", "-p", port, "--fencing-token", fence, protected, "ours, too late")
	if out, err := late.CombinedOutput(); err == nil {
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
	receive(t, ours.token, "our lock after the SDK's has expired")

	sdk.set(t, name, sdk.ID()) // takes it, regardless of whose it is
	ours.mustExit(t, 2)
	if value, _ := sdk.get(t, name); value != sdk.ID() {
		t.Errorf("the key holds %q after our end, want what took it", value)
	}
}
