package txn_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// within is a context that ends with patience, or with the test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T) *client.Client {
	t.Helper()
	addr := testserver.Shared().Addr // which may have to be built and started: before the deadline begins
	c, err := client.Dial(within(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

var keys atomic.Int64

// key is a key that no other test has, nor the same test when it runs again.
func key(t *testing.T, name string) txn.Key {
	return txn.Key(fmt.Sprintf("%s/%d/%s", t.Name(), keys.Add(1), name))
}

func commit(t *testing.T, x *txn.Txn) txn.Result {
	t.Helper()
	r, err := x.Commit(within(t))
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return r
}

func TestTxn(t *testing.T) {
	t.Parallel()
	c := dial(t)
	a, b, gone := key(t, "a"), key(t, "b"), key(t, "gone")

	first := commit(t, c.Txn().If(a.Absent(), b.HasVersion(hlc.Timestamp{})).Then(a.Set([]byte("1")), b.Set([]byte("2")).Expire(time.Hour), gone.Del()))
	if first.Outcome != txn.Committed || len(first.Versions) != 3 || first.Versions[0].IsZero() || !first.Versions[2].IsZero() {
		t.Errorf("committed: %+v", first)
	}
	unmet := commit(t, c.Txn().If(a.Exists(), b.HasValue([]byte("x"))).Then(a.Del()))
	if f := unmet.Failed; unmet.Outcome != txn.ConditionFailed || f.Index != 1 || f.Key != string(b) || !f.Found || string(f.Value) != "2" || f.Version != first.Versions[1] {
		t.Errorf("a condition is not met: %+v", unmet)
	}
	unmet = commit(t, c.Txn().If(gone.Exists()))
	if f := unmet.Failed; unmet.Outcome != txn.ConditionFailed || f.Index != 0 || f.Found || f.Value != nil {
		t.Errorf("a condition on a key that is not there: %+v", unmet)
	}
	once := commit(t, c.Txn().If(a.HasVersion(first.Versions[0])).Then(a.Set([]byte("once"))).Once(string(a), "m1", time.Hour).Retry())
	again := commit(t, c.Txn().Then(a.Set([]byte("twice"))).Once(string(a), "m1", 0))
	if again.Outcome != txn.AlreadyDone || again.Version != once.Versions[0] {
		t.Errorf("done already: %+v, want version %v", again, once.Versions[0])
	}
	if r := commit(t, c.Txn().If(a.MadeBy("m1")).Then(a.Del()).Once(string(a), "m2", 0)); r.Outcome != txn.Committed {
		t.Errorf("behind m1: %+v", r)
	}
	loaded, err := c.Load(within(t), string(a), "m1")
	if err != nil || loaded.Status != client.Confirmed || loaded.Version != once.Versions[0] {
		t.Errorf("LOAD of m1: %+v, %v", loaded, err)
	}
	commit(t, c.Txn().Once(string(a), "m3", 0).Digest([]byte("one")))
	if r := commit(t, c.Txn().Once(string(a), "m3", 0).Digest([]byte("one"))); r.Outcome != txn.AlreadyDone {
		t.Errorf("the same message: %+v", r)
	}
	if _, err := c.Txn().Once(string(a), "m3", 0).Digest([]byte("two")).Commit(within(t)); !errors.Is(err, client.ErrOtherDigest) {
		t.Errorf("another message with the ID: %v", err)
	}
	token := hlc.Timestamp{Wall: 1, Node: "n"}
	commit(t, c.Txn().Then(gone.Set(nil).Fence(token)))
	_, err = c.Txn().Then(gone.Del()).Commit(within(t))
	if !errors.Is(err, client.ErrTokenRequired) {
		t.Errorf("without the token: %v", err)
	}
	commit(t, c.Txn().Then(gone.Del().Fence(token)))
}

func TestErrors(t *testing.T) {
	t.Parallel()
	c := dial(t)
	k, other := key(t, "k"), key(t, "other")
	for name, x := range map[string]*txn.Txn{
		"an expiry of nothing": c.Txn().Then(k.Set(nil).Expire(0)),
		"a Del that expires":   c.Txn().Then(k.Del().Expire(time.Second)),
		"Once for less":        c.Txn().Once("k", "a", -1),
		"a digest of nothing":  c.Txn().Digest([]byte("d")).Once("k", "a", 0),
		"an empty digest":      c.Txn().Once("k", "a", 0).Digest(nil),
		"two digests":          c.Txn().Once("k", "a", 0).Digest([]byte("d")).Digest([]byte("d")),
		"a digest and more":    c.Txn().OnceWith("k", "a", 0, []byte("c")).Digest([]byte("d")),
		"a digest too long":    c.Txn().Once("k", "a", 0).Digest(make([]byte, 65)),
	} {
		if _, err := x.Commit(within(t)); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := c.Txn().Once("k", "a", 0).Once("k", "a", 0).Commit(within(t))
	if !errors.As(err, new(*txn.OperationError)) {
		t.Errorf("Once twice for one message: %v", err)
	}
	_, err = c.Txn().If(other.Absent()).Then(other.Set(nil), k.Set(nil), k.Del()).Commit(within(t))
	var operation *txn.OperationError
	if !errors.As(err, &operation) || operation.Operation != "DEL" || operation.Key != string(k) {
		t.Errorf("one key twice: %v", err)
	}
	many := c.Txn()
	for i := range protocol.DefaultMaxTxnOperations + 1 {
		many.Then(key(t, fmt.Sprint("many", i)).Del())
	}
	_, err = many.Commit(within(t))
	if !errors.Is(err, client.ErrQuotaExceeded) || !errors.As(err, &operation) || operation.Quota != "max-txn-operations" || !strings.Contains(err.Error(), "--max-txn-operations") {
		t.Errorf("too many operations: %v", err)
	}
	_, err = c.Txn().Then(txn.Key("").Del()).Commit(within(t))
	if !errors.Is(err, client.ErrEmptyKey) || !errors.As(err, &operation) {
		t.Errorf("an empty key: %v", err)
	}
	if _, err = c.Txn().Then(k.Set(nil).Expire(1<<63 - 1)).Commit(within(t)); err != nil {
		t.Errorf("the longest expiry: %v", err)
	}
	if _, err = c.Txn().Commit(within(t)); !errors.Is(err, client.ErrWrongArgumentCount) {
		t.Errorf("nothing at all: %v", err)
	}
}

func TestPublish(t *testing.T) {
	t.Parallel()
	c := dial(t)
	k := key(t, "k")
	sub := mqtttest.Connect(t, testserver.Shared().Addr)
	sub.Subscribe(string(k)+"/#", 2)
	message := txn.Message{
		Topic: string(k) + "/out", Payload: []byte("text"), QoS: txn.ExactlyOnce, UTF8: true, Expiry: time.Hour, ContentType: "text/plain",
		ResponseTopic: "response", CorrelationData: []byte{0}, UserProperties: []txn.UserProperty{{Name: "a", Value: "b"}, {Name: "a", Value: "c"}},
	}
	x := c.Txn().If(k.Absent()).Then(k.Set(nil)).Publish(message, txn.Message{Topic: string(k) + "/second"}, txn.Message{Topic: string(k) + "/third", QoS: txn.AtMostOnce})
	if r := commit(t, x); r.Outcome != txn.Committed || len(r.Versions) != 1 {
		t.Fatalf("got %+v", r)
	}
	got := map[string]mqtttest.Message{}
	for _, m := range sub.ReceiveN(3) {
		got[m.Topic] = m
	}
	m := got[string(k)+"/out"]
	if m.QoS != 2 || m.Payload != "text" || m.PayloadFormat == nil || m.Expiry == nil || m.ContentType == nil || m.ResponseTopic == nil ||
		m.CorrelationData == nil || *m.CorrelationData != "\x00" || len(m.User) != 2 || m.User[1] != [2]string{"a", "c"} {
		t.Errorf("got %+v", m)
	}
	if one, none := got[string(k)+"/second"], got[string(k)+"/third"]; one.QoS != 1 || none.QoS != 0 {
		t.Errorf("got %+v and %+v", one, none)
	}
	if r := commit(t, c.Txn().If(k.Absent()).Publish(message)); r.Outcome != txn.ConditionFailed {
		t.Errorf("got %+v", r)
	}
	sub.Quiet()

	_, err := c.Txn().Then(k.Del()).Publish(txn.Message{Topic: "a/#"}).Commit(within(t))
	var operation *txn.OperationError
	if !errors.As(err, &operation) || operation.Operation != "PUBLISH" || operation.Key != "a/#" {
		t.Errorf("an invalid topic: %v", err)
	}
	for _, m := range []txn.Message{{Topic: "t", QoS: 3}, {Topic: "t", Expiry: -1}, {Topic: "t", Expiry: 1 << 62}, {Topic: "t", Expiry: 1<<63 - 1},
		{Topic: "t", UserProperties: []txn.UserProperty{{Name: "holdfast-deliver-after", Value: "-1"}}},
		{Topic: "t", UserProperties: []txn.UserProperty{{Name: "holdfast-deliver-after", Value: "1"}, {Name: "holdfast-timer-id", Value: ""}}}} {
		if _, err := c.Txn().Publish(m).Commit(within(t)); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

// A transaction for several messages is done if none of them is remembered.
func TestOnceForSeveral(t *testing.T) {
	t.Parallel()
	c := dial(t)
	k := key(t, "k")
	commit(t, c.Txn().If(k.Absent()).Then(k.Set([]byte("1"))).OnceWith(string(k), "b", 0, []byte("left")))
	r := commit(t, c.Txn().If(k.Exists()).Then(k.Set([]byte("2"))).Once(string(k), "a", 0).Once(string(k), "b", 0).Once(string(k), "c", 0))
	if r.Outcome != txn.AlreadyDone || r.Once != 1 || r.Version.IsZero() {
		t.Errorf("one is remembered: %+v", r)
	}
	r = commit(t, c.Txn().Then(k.Set([]byte("3"))).Once(string(k), "a", 0).Once(string(k), "c", time.Hour))
	if r.Outcome != txn.Committed {
		t.Errorf("none is remembered: %+v", r)
	}
	for id, want := range map[string]string{"a": "", "b": "left", "c": ""} {
		l, err := c.Load(within(t), string(k), id)
		if err != nil || l.Status != client.Confirmed || string(l.Captured) != want || id != "b" && l.Version != r.Versions[0] {
			t.Errorf("LOAD of %s: %+v, %v", id, l, err)
		}
	}
}

// A transaction sets a timer, another one cancels it in the step in which it writes.
// A message that is open is stored for Load, with what its key had before, until Done.
func TestOpenMessages(t *testing.T) {
	t.Parallel()
	c := dial(t)
	a, b := key(t, "a"), key(t, "b")
	commit(t, c.Txn().Then(b.Set([]byte("before"))))
	made := commit(t, c.Txn().If(a.Absent()).OnceOpen(string(a), "m", time.Hour, []byte("captured")).OnceOpen(string(b), "m", time.Hour, nil).Then(a.Set([]byte("1")), b.Set([]byte("2"))))
	for k, want := range map[txn.Key]string{a: "", b: "before"} {
		if r, err := c.Load(within(t), string(k), "m"); err != nil || r.Status != client.Duplicate || string(r.State) != want {
			t.Errorf("%s is open: %+v, %v", k, r, err)
		}
	}
	if r := commit(t, c.Txn().OnceOpen(string(a), "m", 0, nil).Then(a.Del())); r.Outcome != txn.AlreadyDone || r.Version != made.Versions[0] {
		t.Errorf("once more: %+v", r)
	}
	r := commit(t, c.Txn().Cancel(string(a)).Done(string(a), "m", made.Versions[0], []byte("left")).Done(string(b), "m", made.Versions[0], nil).Done(string(b), "none", hlc.Timestamp{}, nil))
	if !slices.Equal(r.Done, []bool{true, false, false}) || !slices.Equal(r.Cancelled, []bool{false}) {
		t.Errorf("done: %+v", r)
	}
	if r, err := c.Load(within(t), string(a), "m"); err != nil || r.Status != client.Confirmed || string(r.Captured) != "left" {
		t.Errorf("confirmed: %+v, %v", r, err)
	}
	for name, x := range map[string]*txn.Txn{
		"an empty message ID": c.Txn().Done("k", "", hlc.Timestamp{}, nil),
		"a digest":            c.Txn().OnceOpen("k", "m", 0, nil).Digest([]byte("d")),
	} {
		if _, err := x.Commit(within(t)); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	c := dial(t)
	k := key(t, "k")
	id := string(k)
	timer := txn.Message{Topic: "never", UserProperties: []txn.UserProperty{{Name: "holdfast-deliver-after", Value: "3600000"}, {Name: "holdfast-timer-id", Value: id}}}
	if r := commit(t, c.Txn().Publish(timer)); r.Cancelled != nil {
		t.Errorf("set: %+v", r)
	}
	if r := commit(t, c.Txn().If(k.Exists()).Cancel(id)); r.Outcome != txn.ConditionFailed {
		t.Errorf("a condition is not met: %+v", r)
	}
	if r := commit(t, c.Txn().Then(k.Set(nil)).Cancel(id+"/none", id)); len(r.Versions) != 1 || !slices.Equal(r.Cancelled, []bool{false, true}) {
		t.Errorf("cancelled: %+v", r)
	}
	if found, err := c.CancelTimer(within(t), id); found || err != nil {
		t.Errorf("it is there: %v, %v", found, err)
	}
	var operation *txn.OperationError
	if _, err := c.Txn().Publish(timer).Cancel(id).Commit(within(t)); !errors.As(err, &operation) || operation.Operation != "CANCEL" || operation.Key != id {
		t.Errorf("set and cancelled: %v", err)
	}
	for _, id := range []string{"", strings.Repeat("i", 257)} {
		if _, err := c.Txn().Cancel(id).Commit(within(t)); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("an ID of %d bytes: %v", len(id), err)
		}
	}
}
