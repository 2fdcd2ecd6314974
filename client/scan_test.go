package client_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"

	"holdfast/client"
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
	c := dial(t, startServer(t).addr)
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
		"nobody": {},
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
	c := dial(t, startServer(t).addr)
	const keys = 3500
	ctx := within(t, 2*patience)
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := g; i < keys; i += 50 {
				if _, _, err := c.Set(ctx, fmt.Sprintf("key/%06d", i), nil); err != nil {
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
