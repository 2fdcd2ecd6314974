package listen

import (
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]URL{
		"127.0.0.1:1883":        {MQTT, "127.0.0.1:1883", ""},
		":1883":                 {MQTT, ":1883", ""},
		"[::1]:0":               {MQTT, "[::1]:0", ""},
		"mqtt://localhost:1883": {MQTT, "localhost:1883", ""},
		"mqtts://0.0.0.0:8883":  {MQTTS, "0.0.0.0:8883", ""},
		"ws://[::]:80/":         {WS, "[::]:80", ""},
		"wss://h:443/mqtt":      {WSS, "h:443", "/mqtt"},
	} {
		if got, err := ParseURL(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                     "it names no port",
		"127.0.0.1":            "it names no port",
		"127.0.0.1:65536":      "it names no port",
		"127.0.0.1:01883":      "it names no port",
		"http://h:80":          "the scheme must be mqtt, mqtts, ws or wss",
		"mqtt://h:1883/path":   "only WebSocket has a path",
		"ws://u:p@h:80":        "no user, query or fragment",
		"ws://h:80/?a=b":       "no user, query or fragment",
		"ws://h:80/#a":         "no user, query or fragment",
		"mqtt://h:port":        "invalid port",
		"mqtt://%zz:1":         "invalid URL escape",
		"127.0.0.1:1883 or so": "invalid port",
	} {
		if _, err := ParseURL(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "want HOST:PORT, or a URL") {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

func TestIsLoopback(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"127.0.0.1:1": true, "127.8.8.8:1": true, "[::1]:1": true, "localhost:1": true, "[::ffff:127.0.0.1]:1": true,
		"0.0.0.0:1": false, ":1": false, "[::]:1": false, "example.com:1": false, "192.0.2.1:1": false,
	} {
		u, err := ParseURL(text)
		if err != nil || u.IsLoopback() != want {
			t.Errorf("%s: %v, %v", text, u.IsLoopback(), err)
		}
	}
}
