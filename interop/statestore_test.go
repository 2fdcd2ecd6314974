package interop

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
	storeerrors "github.com/Azure/iot-operations-sdks/go/services/statestore/errors"
)

func TestSDKSetGetDel(t *testing.T) {
	t.Parallel()
	c := connectSDK(t, shared(t))
	everyByte := make([]byte, 256)
	for i := range everyByte {
		everyByte[i] = byte(i)
	}

	for _, test := range []struct{ name, key, value string }{
		{"text", uniqueKey("text"), "value"},
		{"empty value", uniqueKey("empty"), ""},
		{"RESP markup", uniqueKey("resp") + "\r\n$-1\r\n", "*1\r\n$-1\r\n:1\r\n-ERR no\r\n"},
		{"every byte in the key", uniqueKey("") + string(everyByte), "v"},
		{"every byte in the value", uniqueKey("bytes"), string(everyByte)},
		{"slashes and wildcards in the key", uniqueKey("a") + "/+/#/$share", "v"},
		{"200,000 bytes", uniqueKey("large"), strings.Repeat("0123456789", 20_000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx := deadline(t)

			// Given a key that has never existed: the SDK takes an answer without
			// a version for "not present".
			if value, version := c.get(t, test.key); value != "" || !version.IsZero() {
				t.Fatalf("before SET: value %q, version %v, want neither", value, version)
			}
			if res, err := c.Del(ctx, test.key); err != nil || res.Value != 0 || !res.Version.IsZero() {
				t.Fatalf("DEL of nothing: %+v, %v, want 0 and no version", res, err)
			}

			// When it is set, it reads back under the version that SET answered.
			written := c.set(t, test.key, test.value)
			value, version := c.get(t, test.key)
			if value != test.value {
				t.Errorf("GET: %d bytes %.40q, want %d bytes %.40q", len(value), value, len(test.value), test.value)
			}
			mustEqual(t, "GET", version, written)

			// When it is set again, its version rises.
			rewritten := c.set(t, test.key, test.value)
			mustRise(t, "second SET", written, rewritten)

			// When it is deleted, the answer names the version that went.
			attempts := c.attempts.Load()
			res, err := c.Del(ctx, test.key)
			if err != nil || res.Value != 1 && !(res.Value == 0 && c.sentAgain(attempts)) {
				t.Fatalf("DEL: %+v, %v, want 1", res, err)
			}
			if res.Value == 1 {
				mustEqual(t, "DEL", res.Version, rewritten)
			}
			if value, version := c.get(t, test.key); value != "" || !version.IsZero() {
				t.Errorf("after DEL: value %q, version %v, want neither", value, version)
			}
		})
	}
}

// Every client reads what another wrote, and versions rise whichever client writes.
func TestSDKClientsShareKeysAndVersions(t *testing.T) {
	t.Parallel()
	a, b := connectSDK(t, shared(t)), connectSDK(t, shared(t))
	key := uniqueKey("shared")

	var last hlc.HybridLogicalClock
	for i := range 20 {
		writer, reader := a, b
		if i%2 == 1 {
			writer, reader = b, a
		}
		want := fmt.Sprint(i)
		written := writer.set(t, key, want)
		mustRise(t, "SET in turn", last, written)
		value, version := reader.get(t, key)
		if value != want {
			t.Fatalf("round %d: read %q", i, value)
		}
		mustEqual(t, "GET by the other client", version, written)
		last = written
	}
}

func TestSDKVDel(t *testing.T) {
	t.Parallel()
	c := connectSDK(t, shared(t))
	ctx := deadline(t)
	key := uniqueKey("vdel")

	if res, err := c.VDel(ctx, key, "v"); err != nil || res.Value != 0 || !res.Version.IsZero() {
		t.Errorf("VDEL of nothing: %+v, %v, want 0 and no version", res, err)
	}

	stored := c.set(t, key, "v")
	res, err := c.VDel(ctx, key, "other")
	if err != nil || res.Value != -1 {
		t.Fatalf("VDEL of another value: %+v, %v, want -1", res, err)
	}
	mustEqual(t, "VDEL of another value", res.Version, stored)
	if value, _ := c.get(t, key); value != "v" {
		t.Errorf("after a VDEL that did not match: %q, want it untouched", value)
	}

	attempts := c.attempts.Load()
	res, err = c.VDel(ctx, key, "v")
	if err != nil || res.Value != 1 && !(res.Value == 0 && c.sentAgain(attempts)) {
		t.Fatalf("VDEL of the stored value: %+v, %v, want 1", res, err)
	}
	if res.Value == 1 {
		mustEqual(t, "VDEL of the stored value", res.Version, stored)
	}
	if _, version := c.get(t, key); !version.IsZero() {
		t.Errorf("after VDEL the key is still there")
	}
}

func TestSDKConditions(t *testing.T) {
	t.Parallel()
	c := connectSDK(t, shared(t))

	for _, test := range []struct {
		name      string
		condition statestore.Condition
		stored    []string // nothing or one value
		set       string
		applied   bool
	}{
		{"NX on a missing key", statestore.NotExists, nil, "new", true},
		{"NX on an existing key", statestore.NotExists, []string{"old"}, "new", false},
		{"NX on the same value", statestore.NotExists, []string{"old"}, "old", false},
		{"NEX on a missing key", statestore.NotExistsOrEqual, nil, "new", true},
		{"NEX on the same value", statestore.NotExistsOrEqual, []string{"old"}, "old", true},
		{"NEX on another value", statestore.NotExistsOrEqual, []string{"old"}, "new", false},
		{"NEX on an empty value", statestore.NotExistsOrEqual, []string{""}, "", true},
		{"always", statestore.Always, []string{"old"}, "new", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			key := uniqueKey("condition")
			var before hlc.HybridLogicalClock
			for _, value := range test.stored {
				before = c.set(t, key, value)
			}

			attempts := c.attempts.Load()
			res, err := c.Set(deadline(t), key, test.set, statestore.WithCondition(test.condition))
			if err != nil {
				t.Fatal(err)
			}
			if res.Value != test.applied && !(test.applied && c.sentAgain(attempts)) { // what is stored is looked at in any case
				t.Fatalf("applied %v, want %v", res.Value, test.applied)
			}

			value, version := c.get(t, key)
			mustEqual(t, "the answer's version against GET's", res.Version, version)
			if test.applied {
				mustRise(t, "applied", before, res.Version)
				if value != test.set {
					t.Errorf("stored %q, want %q", value, test.set)
				}
			} else {
				mustEqual(t, "not applied: the stored version", res.Version, before)
				if value != test.stored[0] {
					t.Errorf("stored %q, want it untouched", value)
				}
			}
		})
	}
}

// Of many clients that create a key at once exactly one succeeds.
func TestSDKOnlyOneCreates(t *testing.T) {
	t.Parallel()
	clients := []*sdkClient{connectSDK(t, shared(t)), connectSDK(t, shared(t)), connectSDK(t, shared(t))}
	ctx := deadline(t)

	for round := range 10 {
		key := uniqueKey("create")
		applied := make(chan string, 30)
		var attempts [3]uint64
		for i, c := range clients {
			attempts[i] = c.attempts.Load()
		}
		var all sync.WaitGroup
		for i := range cap(applied) {
			all.Go(func() {
				value := fmt.Sprint(i)
				res, err := clients[i%len(clients)].Set(ctx, key, value, statestore.WithCondition(statestore.NotExists))
				if err != nil {
					t.Error(err)
				} else if res.Value {
					applied <- value
				}
			})
		}
		all.Wait()
		if len(applied) == 0 && (clients[0].sentAgain(attempts[0]) || clients[1].sentAgain(attempts[1]) || clients[2].sentAgain(attempts[2])) {
			if value, _ := clients[0].get(t, key); value == "" {
				t.Fatalf("round %d: nobody created the key", round)
			}
			continue // the creator's second request was answered that the key is there
		}
		if len(applied) != 1 {
			t.Fatalf("round %d: %d clients created the same key", round, len(applied))
		}
		if value, _ := clients[0].get(t, key); value != <-applied {
			t.Errorf("round %d: the stored value %q is not the winner's", round, value)
		}
	}
}

func TestSDKExpiry(t *testing.T) {
	t.Parallel()
	c := connectSDK(t, shared(t))
	life := withFailover(t, 3*time.Second) // in which a busy machine has changed the key again
	expired := func(t *testing.T, key string) func() bool {
		return func() bool {
			_, version := c.get(t, key)
			return version.IsZero()
		}
	}

	t.Run("a key is there until its deadline and gone soon after", func(t *testing.T) {
		t.Parallel()
		key := uniqueKey("expiry")
		start := time.Now()
		c.set(t, key, "v", statestore.WithExpiry(life))
		eventually(t, "the key expires", expired(t, key))
		if lived := time.Since(start); lived < life {
			t.Errorf("lived %v, want %v", lived, life)
		}
		if res, err := c.Del(deadline(t), key); err != nil || res.Value != 0 {
			t.Errorf("DEL after expiry: %+v, %v, want 0", res, err)
		}
		// An expired key does not exist for NX.
		c.set(t, key, "again", statestore.WithCondition(statestore.NotExists))
	})

	t.Run("SET without an expiry removes the one before", func(t *testing.T) {
		t.Parallel()
		key, witness := uniqueKey("kept"), uniqueKey("witness")
		c.set(t, key, "v", statestore.WithExpiry(life))
		c.set(t, key, "v")
		c.set(t, witness, "v", statestore.WithExpiry(life))
		eventually(t, "a key set later with the same expiry expires", expired(t, witness))
		if _, version := c.get(t, key); version.IsZero() {
			t.Error("the key expired although its last SET had no expiry")
		}
	})

	t.Run("NEX with an equal value extends it, NX that fails does not", func(t *testing.T) {
		t.Parallel()
		extended, left, witness := uniqueKey("extended"), uniqueKey("left"), uniqueKey("witness")
		c.set(t, extended, "v", statestore.WithExpiry(life))
		c.set(t, left, "v", statestore.WithExpiry(life))
		c.set(t, extended, "v", statestore.WithExpiry(time.Hour), statestore.WithCondition(statestore.NotExistsOrEqual))
		res, err := c.Set(deadline(t), left, "v", statestore.WithExpiry(time.Hour), statestore.WithCondition(statestore.NotExists))
		if err != nil || res.Value {
			t.Fatalf("NX on an existing key: %+v, %v, want not applied", res, err)
		}
		c.set(t, witness, "v", statestore.WithExpiry(life))
		eventually(t, "a key set later with the same expiry expires", expired(t, witness))
		if _, version := c.get(t, extended); version.IsZero() {
			t.Error("the extended key expired")
		}
		eventually(t, "the key whose NX failed expires", expired(t, left))
	})

	t.Run("an expiry of less than a millisecond is refused", func(t *testing.T) {
		t.Parallel()
		_, err := c.Set(deadline(t), uniqueKey("zero"), "v", statestore.WithExpiry(time.Microsecond))
		mustFailWith(t, "SET PX 0", err, storeerrors.SyntaxError)
	})
}

func TestSDKFencing(t *testing.T) {
	t.Parallel()
	c := connectSDK(t, shared(t))
	// Tokens are versions of a lock's key: the later holder's is the higher one.
	lock := uniqueKey("lock")
	older, newer := c.set(t, lock, "a"), c.set(t, lock, "b")
	fence := func(v hlc.HybridLogicalClock) statestore.WithFencingToken { return statestore.WithFencingToken(v) }

	t.Run("a protected key asks for a token that is not lower", func(t *testing.T) {
		t.Parallel()
		ctx := deadline(t)
		key := uniqueKey("fenced")
		protected := c.set(t, key, "by newer", fence(newer))

		_, err := c.Set(ctx, key, "v")
		mustFailWith(t, "SET without a token", err, storeerrors.MissingFencingToken)
		_, err = c.Set(ctx, key, "v", fence(older))
		mustFailWith(t, "SET with a lower token", err, storeerrors.FencingTokenLowerVersion)
		_, err = c.Del(ctx, key)
		mustFailWith(t, "DEL without a token", err, storeerrors.MissingFencingToken)
		_, err = c.Del(ctx, key, fence(older))
		mustFailWith(t, "DEL with a lower token", err, storeerrors.FencingTokenLowerVersion)
		_, err = c.VDel(ctx, key, "by newer")
		mustFailWith(t, "VDEL without a token", err, storeerrors.MissingFencingToken)
		_, err = c.VDel(ctx, key, "by newer", fence(older))
		mustFailWith(t, "VDEL with a lower token", err, storeerrors.FencingTokenLowerVersion)
		// The token is asked for before the condition is.
		_, err = c.Set(ctx, key, "v", statestore.WithCondition(statestore.NotExists))
		mustFailWith(t, "NX without a token", err, storeerrors.MissingFencingToken)

		// None of that changed anything, and reading needs no token.
		value, version := c.get(t, key)
		if value != "by newer" {
			t.Errorf("stored %q, want it untouched", value)
		}
		mustEqual(t, "GET", version, protected)

		// The same token goes on, and after the key is deleted none is needed.
		c.set(t, key, "again", fence(newer))
		attempts := c.attempts.Load()
		res, err := c.Del(ctx, key, fence(newer))
		if err != nil || res.Value != 1 && !(res.Value == 0 && c.sentAgain(attempts)) {
			t.Errorf("DEL with the token: %+v, %v, want 1", res, err)
		}
		c.set(t, key, "free")
	})

	t.Run("a newer token raises the bar", func(t *testing.T) {
		t.Parallel()
		key := uniqueKey("raised")
		c.set(t, key, "v", fence(older))
		c.set(t, key, "v", fence(newer))
		_, err := c.Set(deadline(t), key, "v", fence(older))
		mustFailWith(t, "SET with the first token", err, storeerrors.FencingTokenLowerVersion)
	})

	t.Run("a SET that is not applied raises nothing", func(t *testing.T) {
		t.Parallel()
		key := uniqueKey("unraised")
		c.set(t, key, "v", fence(older))
		res, err := c.Set(deadline(t), key, "w", fence(newer), statestore.WithCondition(statestore.NotExists))
		if err != nil || res.Value {
			t.Fatalf("NX on an existing key: %+v, %v, want not applied", res, err)
		}
		c.set(t, key, "v", fence(older))
	})

	t.Run("a token on a key without one", func(t *testing.T) {
		t.Parallel()
		ctx := deadline(t)
		key := uniqueKey("unfenced")
		c.set(t, key, "v")
		attempts := c.attempts.Load()
		res, err := c.VDel(ctx, key, "v", fence(older))
		if err != nil || res.Value != 1 && !(res.Value == 0 && c.sentAgain(attempts)) {
			t.Errorf("VDEL ignores it: %+v, %v, want 1", res, err)
		}
		c.set(t, key, "v")
		c.set(t, key, "v", fence(older))
		_, err = c.Set(ctx, key, "v")
		mustFailWith(t, "SET took it over; then SET without", err, storeerrors.MissingFencingToken)
	})

	t.Run("a token from the future", func(t *testing.T) {
		t.Parallel()
		future := versionAt(t, time.Now().Add(10*time.Minute))
		_, err := c.Set(deadline(t), uniqueKey("future"), "v", fence(future))
		mustFailWith(t, "SET", err, storeerrors.FencingTokenSkew)
	})
}

// A client's clock may run ahead by up to a minute; versions never go back, for
// no client. On a server of its own, because its versions stay ahead.
func TestSDKClockAhead(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	punctual := connectSDK(t, s)
	ahead := connectSDKWith(t, s, sdkOptions{maxClockDrift: time.Hour})
	key := uniqueKey("ahead")
	first := punctual.set(t, key, "first")

	// Given a clock 30 s ahead: its SET counts, and later ones by a punctual
	// clock are newer all the same.
	if err := ahead.app.SetHLC(versionAt(t, time.Now().Add(30*time.Second))); err != nil {
		t.Fatal(err)
	}
	second := ahead.set(t, key, "second")
	mustRise(t, "SET 30 s ahead", first, second)
	if lead := time.Until(second.UTC()); lead < 20*time.Second {
		t.Errorf("its version is only %v ahead, want the client's own clock in it", lead)
	}
	third := punctual.set(t, key, "third")
	mustRise(t, "SET by a punctual clock after it", second, third)

	// Given a clock 10 minutes ahead: SET is refused, everything else works,
	// because only SET looks at the timestamp that the SDK always sends.
	if err := ahead.app.SetHLC(versionAt(t, time.Now().Add(10*time.Minute))); err != nil {
		t.Fatal(err)
	}
	_, err := ahead.Set(deadline(t), key, "fourth")
	mustFailWith(t, "SET 10 minutes ahead", err, storeerrors.TimestampSkew)
	if value, _ := ahead.get(t, key); value != "third" {
		t.Errorf("GET 10 minutes ahead: %q, want %q", value, "third")
	}
	if res, err := ahead.Del(deadline(t), key); err != nil || res.Value != 1 {
		t.Errorf("DEL 10 minutes ahead: %+v, %v, want 1", res, err)
	}
	mustRise(t, "nothing of the refused clock is left", third, punctual.set(t, key, "fifth"))
}

// The SDK marks requests with properties that mean something to the broker it was
// made for; ours takes no notice.
func TestSDKPersistOption(t *testing.T) {
	t.Parallel()
	c := connectSDK(t, shared(t))
	key := uniqueKey("persist")
	c.set(t, key, "v", statestore.WithPersist(true), statestore.WithTimeout(patience))
	if value, _ := c.get(t, key); value != "v" {
		t.Errorf("read %q", value)
	}
}

// Many requests of one client are under way at once and each gets its own answer.
func TestSDKConcurrentRequests(t *testing.T) {
	t.Parallel()
	c := connectSDK(t, shared(t))
	ctx := deadline(t)
	prefix := uniqueKey("concurrent")

	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			key := fmt.Sprint(prefix, i)
			for round := range 10 {
				want := fmt.Sprint(i, "/", round)
				if _, err := c.Set(ctx, key, want); err != nil {
					t.Errorf("SET: %v", err)
					return
				}
				if res, err := c.Get(ctx, key); err != nil || res.Value != want {
					t.Errorf("GET: %+v, %v, want %q", res, err, want)
					return
				}
			}
		})
	}
	all.Wait()
}

// A connection that breaks under a request costs nothing but time: the session
// resumes (the SDK gives up for good without Session Present), the request or its
// answer is sent again.
func TestSDKRequestsSurviveALostConnection(t *testing.T) {
	t.Parallel()
	c := connectSDK(t, shared(t))
	ctx := deadline(t)
	key := uniqueKey("survivor")

	var last hlc.HybridLogicalClock
	for i := range 20 {
		answered := make(chan error, 1)
		var res *statestore.Response[bool]
		go func() {
			var err error
			res, err = c.Set(ctx, key, fmt.Sprint(i))
			answered <- err
		}()
		c.cut()
		if err := receive(t, answered, "the answer to a SET whose connection broke"); err != nil {
			t.Fatalf("SET %d: %v", i, err)
		}
		mustRise(t, "SET over a new connection", last, res.Version)
		last = res.Version
		c.awaitConnection(t)
	}
	if value, _ := c.get(t, key); value != "19" {
		t.Errorf("read %q, want the last value", value)
	}
}

// versionAt is a version with a wall clock of our choice.
func versionAt(t *testing.T, at time.Time) hlc.HybridLogicalClock {
	t.Helper()
	v, err := hlc.New().Parse("", fmt.Sprintf("%d:0:interop", at.UnixMilli()))
	if err != nil {
		t.Fatal(err)
	}
	return v
}
