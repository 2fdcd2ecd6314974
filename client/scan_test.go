package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func scanned(t *testing.T, c *client.Client, pattern string) map[string]int {
	t.Helper()
	keys := make(map[string]int)
	for k, err := range c.Scan(context.Background(), pattern) {
		if err != nil {
			t.Fatal(err)
		}
		keys[k]++
	}
	return keys
}

func TestScan(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Run(t).Addr)
	for _, k := range []string{"a", "b", "ab", "a/b", "*", "日本", "\xff not UTF-8"} {
		mustSet(t, c, k, "")
	}
	for pattern, want := range map[string][]string{
		"*":      {"a", "b", "ab", "a/b", "*", "日本"},
		"a*":     {"a", "ab", "a/b"},
		"?":      {"a", "b", "*"},
		"[!a]":   {"b", "*"},
		"[*]":    {"*"},
		"??":     {"ab", "日本"},
		"absent": {},
	} {
		expected := make(map[string]int)
		for _, k := range want {
			expected[k] = 1
		}
		if got := scanned(t, c, pattern); !maps.Equal(got, expected) {
			t.Errorf("%s: %v, want %v", pattern, got, expected)
		}
	}
}

func TestScanOfManyPages(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Run(t).Addr)
	const keys = 3500
	ctx := within(t, 2*patience)
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := g; i < keys; i += 50 {
				if _, err := c.Set(ctx, fmt.Sprintf("key/%06d", i), nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	got := scanned(t, c, "key/*")
	if len(got) != keys {
		t.Errorf("%d keys, want %d", len(got), keys)
	}
	for k, times := range got {
		if times != 1 {
			t.Errorf("%s came %d times", k, times)
		}
	}
	// A loop that has seen enough just stops.
	n := 0
	for range c.Scan(context.Background(), "*") {
		if n++; n == 1200 {
			break
		}
	}
	mustGet(t, c, "key/000000")
}

func TestScanValues(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t)
	c := dial(t, s.Addr)
	large := strings.Repeat("l", 300<<10) // more than a page
	values := map[string]string{"a": "1", "b": "", "c": "\xff\r\n", "d": large, "e": "5"}
	for k, v := range values {
		mustSet(t, c, k, v)
	}
	for e, err := range c.ScanValues(t.Context(), "*") {
		if err != nil {
			t.Fatal(err)
		}
		v := mustGet(t, c, e.Key)
		if string(e.Bytes) != values[e.Key] || e.Bytes == nil || e.Version != v.Version || e.TooLarge {
			t.Errorf("%s: %.20q of version %v; want %.20q, %v", e.Key, e.Bytes, e.Version, values[e.Key], v.Version)
		}
		delete(values, e.Key)
	}
	if len(values) > 0 {
		t.Errorf("%d keys did not come", len(values))
	}
	small := dial(t, s.Addr, client.WithMaxPacketSize(10_000))
	for e, err := range small.ScanValues(t.Context(), "*") {
		if err != nil || e.TooLarge != (e.Key == "d") || e.TooLarge != (e.Bytes == nil) || e.Version.IsZero() {
			t.Errorf("in packets of 10,000 bytes: %s, too large %v, %v", e.Key, e.TooLarge, err)
		}
	}
}

// Keys that are not UTF-8 come as they are, and can be used.
func TestScanBinaryKeys(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Run(t).Addr)
	for _, k := range []string{"caf\xe9", "café", "cafe"} {
		mustSet(t, c, k, k)
	}
	for pattern, want := range map[string][]string{"*": {"cafe", "café", "caf\xe9"}, "caf?": {"cafe", "caf\xe9"}, "caf\xe9*": {"caf\xe9"}} {
		var got []string
		for e, err := range c.ScanValues(t.Context(), pattern, client.BinaryKeys()) {
			if err != nil || string(e.Bytes) != e.Key {
				t.Fatalf("%q: %q, %v", pattern, e.Bytes, err)
			}
			got = append(got, e.Key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
}

// A key that is too long for the client's packets is said to be, and not waited for.
func TestScanOfKeyThatIsTooLong(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t)
	mustSet(t, dial(t, s.Addr), strings.Repeat("k", 2000), "v")
	small := dial(t, s.Addr, client.WithMaxPacketSize(2000))
	for key, err := range small.Scan(t.Context(), "*") {
		if !errors.Is(err, client.ErrPageTooLarge) {
			t.Errorf("%q, %v", key, err)
		}
	}
}

// With Details a key comes with its expiry and its fencing token.
func TestScanDetails(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Run(t).Addr)
	ctx := within(t, patience)
	set, err := c.Set(ctx, "a", []byte("plain"))
	if err != nil {
		t.Fatal(err)
	}
	plain := set.Version
	if _, err := c.Set(ctx, "b", []byte("fenced"), client.Fencing(plain), client.Expiry(time.Hour)); err != nil {
		t.Fatal(err)
	}
	var got []client.Entry
	for e, err := range c.ScanValues(ctx, "*", client.Details()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	if len(got) != 2 {
		t.Fatalf("%d keys, want 2", len(got))
	}
	if a := got[0]; a.Expiry != 0 || !a.FencingToken.IsZero() || string(a.Bytes) != "plain" || a.Version != plain {
		t.Errorf("%+v, want a plain key of version %v", a, plain)
	}
	if b := got[1]; b.Expiry <= 0 || b.Expiry > time.Hour+time.Millisecond || b.FencingToken != plain || string(b.Bytes) != "fenced" {
		t.Errorf("%+v, want a key with an hour and the token %v", b, plain)
	}
	for key, err := range c.Scan(ctx, "*", client.Details()) {
		if err != nil || key == "" {
			t.Errorf("without values: %q, %v", key, err)
		}
	}
}
