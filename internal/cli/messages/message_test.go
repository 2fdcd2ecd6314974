package messages

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// A format prints any bytes as they are, and what a message doesn't have as nothing.
func TestMessageFormat(t *testing.T) {
	t.Parallel()
	var everyByte []byte
	for i := range 256 {
		everyByte = append(everyByte, byte(i))
	}
	var f messageFormat
	m := &mqtt.Publish{Topic: []byte("t"), Payload: everyByte, Retain: true}
	at := time.Unix(1_700_000_000, 123_456_789)
	for format, want := range map[string]string{
		"":               "",
		"%p":             string(everyByte),
		`[%C%R%D%E%P]\0`: "[]\x00",
		"%q%r %U":        "01 1700000000.123456",
		"%I":             "2023-11-14T22:13:20.123Z",
		"é%%":            "é%",
	} {
		if err := f.Set(format); err != nil {
			t.Fatal(err)
		}
		if got := string(f.append(nil, m, at)); got != want {
			t.Errorf("%q: %q, want %q", format, got, want)
		}
	}
	var b bytes.Buffer
	if err := newMessageRecord(m, at).write(&b); err != nil || !json.Valid(b.Bytes()) {
		t.Errorf("%s, %v", b.Bytes(), err)
	}
}
