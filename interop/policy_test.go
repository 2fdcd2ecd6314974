package interop

import (
	"path/filepath"
	"testing"

	"github.com/Azure/iot-operations-sdks/go/mqtt"
	storeerrors "github.com/Azure/iot-operations-sdks/go/services/statestore/errors"
)

// The SDK reports a key that the policy does not allow as the protocol's error, for each of
// its commands, and goes on with the keys that it allows.
func TestSDKIsDeniedAKeyBeyondThePolicy(t *testing.T) {
	t.Parallel()
	s := ownServerWith(t, "--policy", "testdata/policy.yaml", "--allow-anonymous")
	c := connectSDK(t, s)
	allowed, beyond := uniqueKey("key"), uniqueName("beyond")
	c.set(t, allowed, "value")

	_, err := c.Set(deadline(t), beyond, "value")
	mustFailWith(t, "SET", err, storeerrors.NotAuthorized)
	_, err = c.Get(deadline(t), beyond)
	mustFailWith(t, "GET", err, storeerrors.NotAuthorized)
	_, err = c.Del(deadline(t), beyond)
	mustFailWith(t, "DEL", err, storeerrors.NotAuthorized)
	_, err = c.VDel(deadline(t), beyond, "value")
	mustFailWith(t, "VDEL", err, storeerrors.NotAuthorized)
	mustFailWith(t, "KEYNOTIFY", c.KeyNotify(deadline(t), beyond), storeerrors.NotAuthorized)

	if value, _ := c.get(t, allowed); value != "value" {
		t.Errorf("an allowed key holds %q", value)
	}
}

// The policy that `holdfast init` writes lets the SDK use keys that begin with its user
// name, watch them, and no other ones.
func TestSDKUnderThePolicyOfInit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "site")
	runProgram(t, binary, "init", dir)
	runProgram(t, binary, "passwd", filepath.Join(dir, "passwords"), "olga", "-b", "secret")
	s := ownServerWith(t, "--password-file", filepath.Join(dir, "passwords"), "--policy", filepath.Join(dir, "policy.yaml"))
	c := connectSDKWith(t, s, sdkOptions{id: "olga:sdk", session: []mqtt.SessionClientOption{
		mqtt.WithUsername(mqtt.ConstantUsername("olga")), mqtt.WithPassword(mqtt.ConstantPassword([]byte("secret"))),
	}})
	notifications := c.watch(t, "olga/state")
	c.set(t, "olga/state", "on")
	if n := receive(t, notifications, "the notification of a SET"); n.Value != "on" {
		t.Errorf("notified of %q", n.Value)
	}
	_, err := c.Get(deadline(t), "oleg/state")
	mustFailWith(t, "GET of another user's key", err, storeerrors.NotAuthorized)
}
