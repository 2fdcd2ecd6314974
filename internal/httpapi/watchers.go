package httpapi

import (
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
)

// WatchedKeys says of keys which clients watch them: programs that are told of each change, and
// those that wait for a lock.
type WatchedKeys struct {
	Keys []WatchedKey `json:"keys"` // in the order in which they were asked for
}

// WatchedKey says it of one key.
type WatchedKey struct {
	KeyHex   string   `json:"keyHex"`
	Watchers int64    `json:"watchers"`
	Clients  []string `json:"clients"` // IDs of watchers, as many as the answer has room for, sorted
}

// maxWatchedKeys is how many keys one request may ask for.
const maxWatchedKeys = 100

func (a *API) listWatchers(q *request) (any, error) {
	room, err := q.limit(MaxPage)
	if err != nil {
		return nil, err
	}
	keys, err := q.watchedKeys()
	if err != nil {
		return nil, err
	}
	out := WatchedKeys{Keys: []WatchedKey{}}
	for _, key := range keys {
		clients, all := a.o.Watchers(key, room)
		slices.Sort(clients)
		room -= len(clients)
		out.Keys = append(out.Keys, WatchedKey{KeyHex: hex.EncodeToString(key), Watchers: int64(all), Clients: append([]string{}, clients...)})
	}
	return out, nil
}

// watchedKeys reads the keys of a request: one as text, or several in hexadecimal.
func (q *request) watchedKeys() (keys [][]byte, err error) {
	if q.query.Has("key") == q.query.Has("keysHex") {
		return nil, failed(http.StatusBadRequest, "give the parameter key, or keysHex with keys in hexadecimal and commas between them, and not both")
	}
	if q.query.Has("key") {
		return [][]byte{[]byte(q.query.Get("key"))}, nil
	}
	for text := range strings.SplitSeq(q.query.Get("keysHex"), ",") {
		key, err := hex.DecodeString(text)
		if err != nil || len(key) == 0 {
			return nil, failed(http.StatusBadRequest, "the parameter keysHex has %q: want keys in hexadecimal, with commas between them", cut(text))
		}
		if len(keys) == maxWatchedKeys {
			return nil, failed(http.StatusBadRequest, "the parameter keysHex has more than %d keys: ask again for the others", maxWatchedKeys)
		}
		keys = append(keys, key)
	}
	return keys, nil
}
