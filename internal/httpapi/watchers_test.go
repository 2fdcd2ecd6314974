package httpapi_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
)

// An administrator asks which clients watch keys, be they text or not.
func TestWatchers(t *testing.T) {
	t.Parallel()
	a := start(t)
	const odd = "\xff,\x00"
	for _, id := range []string{"b", "a"} {
		c, err := client.Dial(t.Context(), a.Addr, client.WithClientID(id))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for _, key := range []string{"lock", odd} {
			if _, err := c.Watch(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	watched := func(query string) []httpapi.WatchedKey {
		t.Helper()
		var got httpapi.WatchedKeys
		if status := a.ask("GET", "/api/v1/watchers?"+query, nil, &got); status != 200 {
			t.Fatalf("%s: status %d", query, status)
		}
		return got.Keys
	}
	if got := watched("key=lock"); len(got) != 1 || got[0].KeyHex != "6c6f636b" || got[0].Watchers != 2 || !slices.Equal(got[0].Clients, []string{"a", "b"}) {
		t.Errorf("lock: %+v", got)
	}
	got := watched("keysHex=ff2c00,6e6f6e65,6c6f636b&limit=3")
	if len(got) != 3 || got[0].Watchers != 2 || len(got[0].Clients) != 2 || got[1].Watchers != 0 || len(got[1].Clients) != 0 {
		t.Fatalf("three keys: %+v", got)
	}
	if lock := got[2]; lock.Watchers != 2 || len(lock.Clients) != 1 {
		t.Errorf("with room for one more client: %+v", lock)
	}
	many := func(n int) string { return "keysHex=" + strings.TrimSuffix(strings.Repeat("00,", n), ",") }
	if got := watched(many(100)); len(got) != 100 {
		t.Errorf("asked for 100 keys, got %d", len(got))
	}
	for query, text := range map[string]string{
		"": "give the parameter key, or keysHex", "key=a&keysHex=00": "not both", "keysHex=0g": `keysHex has "0g"`, "keysHex=": `keysHex has ""`,
		many(101): "more than 100 keys", "key=a&limit=1001": "a number from 1 to 1000",
	} {
		a.refused(400, text, "GET", "/api/v1/watchers?"+query, nil)
	}
	secured := secured(t)
	secured.as("press").refused(403, "this is for administrators", "GET", "/api/v1/watchers?key=lock", nil)
	if status := secured.as("olga").ask("GET", "/api/v1/watchers?key=lock", nil, nil); status != 200 {
		t.Errorf("an administrator is answered %d", status)
	}
}
