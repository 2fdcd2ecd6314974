package interop

import (
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
)

// The SDK's client asks for notifications with KEYNOTIFY and never subscribes to
// the topic that they come on.

func TestSDKObserve(t *testing.T) {
	needsOneConnection(t)
	t.Parallel()
	watcher, writer := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	ctx := deadline(t)
	// The key travels in the notification's topic, in base 16.
	key := uniqueKey("observed/+/#") + "\x00\xff"
	notifications := watcher.watch(t, key)

	var last hlc.HybridLogicalClock
	expect := func(what, operation, value string) notify {
		t.Helper()
		n := receive(t, notifications, "the notification of "+what)
		if n.Key != key || n.Operation != operation || n.Value != value {
			t.Errorf("%s: notified of %s %q = %q, want %s = %q", what, n.Operation, n.Key, n.Value, operation, value)
		}
		mustRise(t, what+": one key's notifications only rise", last, n.Version)
		last = n.Version
		return n
	}

	set := writer.set(t, key, "one")
	mustEqual(t, "SET", expect("another's SET", "SET", "one").Version, set)

	// Its own changes notify a client too, and so does a SET of an equal value.
	set = watcher.set(t, key, "one")
	mustEqual(t, "own SET", expect("its own SET of an equal value", "SET", "one").Version, set)

	writer.set(t, key, "")
	expect("a SET to the empty value", "SET", "")

	// What is not applied does not notify: the next notification is of what follows.
	if res, err := writer.Set(ctx, key, "no", statestore.WithCondition(statestore.NotExists)); err != nil || res.Value {
		t.Fatalf("NX on an existing key: %+v, %v", res, err)
	}
	if res, err := writer.VDel(ctx, key, "no"); err != nil || res.Value != -1 {
		t.Fatalf("VDEL of another value: %+v, %v", res, err)
	}
	if _, err := writer.Del(ctx, key); err != nil {
		t.Fatal(err)
	}
	expect("DEL", "DELETE", "")
	if res, err := writer.Del(ctx, key); err != nil || res.Value != 0 {
		t.Fatalf("DEL of nothing: %+v, %v", res, err)
	}

	writer.set(t, key, "two")
	expect("SET after DEL", "SET", "two")
	if res, err := writer.VDel(ctx, key, "two"); err != nil || res.Value != 1 {
		t.Fatalf("VDEL: %+v, %v", res, err)
	}
	expect("VDEL", "DELETE", "")

	writer.set(t, key, "three", statestore.WithExpiry(100*time.Millisecond))
	expect("SET with an expiry", "SET", "three")
	expect("expiry", "DELETE", "")
}

func TestSDKObserveOnlyTheKeysAskedFor(t *testing.T) {
	needsOneConnection(t)
	t.Parallel()
	watcher, writer := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	name := uniqueKey("asked")
	asked := watcher.watch(t, name)
	// Listening is not asking.
	neighbours := watcher.listen(t, name+"x")
	bystander := connectSDK(t, shared(t)).listen(t, name)

	writer.set(t, name+"x", "v")
	writer.set(t, name, "v")

	if n := receive(t, asked, "the notification of the key asked for"); n.Key != name {
		t.Errorf("notified of %q, want %q", n.Key, name)
	}
	if len(neighbours) > 0 {
		t.Error("notified of a key that was not observed")
	}
	if len(bystander) > 0 {
		t.Error("a client that did not ask was notified")
	}
}

// Asking twice for a key gives one notification per change. The SDK counts and
// sends STOP with the last KeyNotifyStop only.
func TestSDKObserveStop(t *testing.T) {
	needsOneConnection(t)
	t.Parallel()
	watcher, writer := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	ctx := deadline(t)
	key, witness := uniqueKey("stopped"), uniqueKey("witness")
	notifications, witnesses := watcher.watch(t, key), watcher.watch(t, witness)
	if err := watcher.KeyNotify(ctx, key); err != nil {
		t.Fatalf("KEYNOTIFY a second time: %v", err)
	}
	// A change and then one of the witness: what the first one causes is here
	// when the witness's notification is.
	change := func(value string) {
		t.Helper()
		writer.set(t, key, value)
		writer.set(t, witness, value)
		if n := receive(t, witnesses, "the witness's notification"); n.Value != value {
			t.Errorf("the witness was notified of %q, want %q", n.Value, value)
		}
	}

	change("registered twice")
	if n := receive(t, notifications, "a notification"); n.Value != "registered twice" {
		t.Errorf("notified of %q", n.Value)
	}

	if err := watcher.KeyNotifyStop(ctx, key); err != nil {
		t.Fatalf("KEYNOTIFY STOP that the SDK keeps to itself: %v", err)
	}
	change("registered once")
	if n := receive(t, notifications, "a notification"); n.Value != "registered once" {
		t.Errorf("notified of %q, want one notification per change", n.Value)
	}

	if err := watcher.KeyNotifyStop(ctx, key); err != nil {
		t.Fatalf("KEYNOTIFY STOP: %v", err)
	}
	change("stopped")
	change("and stopped")
	if len(notifications) > 0 {
		t.Errorf("notified of %q after STOP", (<-notifications).Value)
	}

	if err := watcher.KeyNotify(ctx, key); err != nil {
		t.Fatalf("KEYNOTIFY again: %v", err)
	}
	change("again")
	if n := receive(t, notifications, "a notification"); n.Value != "again" {
		t.Errorf("notified of %q", n.Value)
	}
}

// A registration ends with its connection: the SDK asks again after every connect
// and reports, as if it were a notification, what the key holds by then.
func TestSDKObserveGoesOnAfterALostConnection(t *testing.T) {
	needsOneConnection(t)
	t.Parallel()
	watcher, writer := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	key := uniqueKey("reconnected")
	written := writer.set(t, key, "before")
	notifications := watcher.watch(t, key)

	for range 3 {
		watcher.cut()
		watcher.awaitConnection(t)
		n := receive(t, notifications, "the SDK's report after reconnecting")
		if n.Operation != "SET" || n.Value != "before" {
			t.Errorf("after reconnecting the SDK reports %s %q", n.Operation, n.Value)
		}
		mustEqual(t, "the SDK's report after reconnecting", n.Version, written)
	}

	written = writer.set(t, key, "after")
	n := receive(t, notifications, "the notification of a SET after")
	if n.Value != "after" {
		t.Errorf("notified of %q, want %q", n.Value, "after")
	}
	mustEqual(t, "the notification of a SET after", n.Version, written)
	if len(notifications) > 0 {
		t.Errorf("a change was notified more than once, again as %+v", <-notifications)
	}
}

// A notification that was not acknowledged is sent again when the session resumes.
func TestSDKUnacknowledgedNotificationIsSentAgain(t *testing.T) {
	needsOneConnection(t)
	t.Parallel()
	watcher := connectSDKWith(t, shared(t), sdkOptions{
		store: []statestore.ClientOption{statestore.WithManualAck(true)},
	})
	writer := connectSDK(t, shared(t))
	key := uniqueKey("unacknowledged")
	notifications := watcher.watch(t, key)

	written := writer.set(t, key, "v")
	first := receive(t, notifications, "a notification")
	if first.Ack == nil {
		t.Fatal("no Ack: the notification must come with QoS 1")
	}

	// When the connection breaks before it is acknowledged, the SDK reports the
	// key by itself, and the notification comes once more.
	watcher.cut()
	watcher.awaitConnection(t)
	for _, what := range []string{"one of the SDK's report and the redelivery", "the other of them"} {
		n := receive(t, notifications, what)
		if n.Operation != "SET" || n.Value != "v" {
			t.Errorf("%s %q, want SET %q", n.Operation, n.Value, "v")
		}
		mustEqual(t, what, n.Version, written)
		n.Ack()
	}
	if len(notifications) > 0 {
		t.Errorf("notified a third time: %+v", <-notifications)
	}
}
