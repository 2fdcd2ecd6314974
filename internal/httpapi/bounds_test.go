package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// A request is refused while as many as there may be are under way, and served when one of them
// has ended.
func TestRequestsAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.New(broker.Options{Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	a := New(Options{Sessions: b.Sessions, Log: slog.New(slog.DiscardHandler)})
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		a.Serve(w, httptest.NewRequest(http.MethodGet, "/api/v1/clients", nil), nil)
		return w
	}
	free := a.Occupy()
	w := ask()
	var f Failure
	if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
		t.Errorf("with all places taken: %d %s %v", w.Code, w.Body, err)
	}
	<-a.places
	if w := ask(); w.Code != http.StatusOK {
		t.Errorf("with one place free: %d %s", w.Code, w.Body)
	}
	a.places <- struct{}{}
	free()
	if got := [2]int64{a.Answers(2), a.Answers(4)}; got != [2]int64{1, 1} {
		t.Errorf("answers counted: %v", got)
	}
}

// So many user properties are read as there may be, and one more ends the reading, whatever follows.
func TestUserPropertiesAreBounded(t *testing.T) {
	t.Parallel()
	body := func(n int, end string) []byte {
		return []byte(`{"properties":{"userProperties":[{"name":"a","value":"b"}` + strings.Repeat(`,{}`, n-1) + end + `]}}`)
	}
	var m Message
	if err := decode(body(maxUserProperties, ""), &m); err != nil || len(m.Properties.UserProperties) != maxUserProperties || m.Properties.UserProperties[0] != (UserProperty{"a", "b"}) {
		t.Errorf("%d user properties: %d, %v", maxUserProperties, len(m.Properties.UserProperties), err)
	}
	m = Message{}
	for name, test := range map[string]struct{ body, want string }{
		"one more":         {string(body(maxUserProperties+1, "")), "more than 65535 items"},
		"a million more":   {string(body(maxUserProperties+1_000_000, `,7`)), "more than 65535 items"},
		"an unknown field": {string(body(1, `,{"nam":"a"}`)), "unknown field"},
		"no objects":       {string(body(1, `,7`)), "cannot unmarshal"},
		"no array":         {`{"properties":{"userProperties":{}}}`, "must be an array"},
	} {
		if err := decode([]byte(test.body), &m); err == nil || !strings.Contains(err.Error(), test.want) || len(m.Properties.UserProperties) > maxUserProperties {
			t.Errorf("%s: %v, and %d were read; want %q", name, err, len(m.Properties.UserProperties), test.want)
		}
	}
	if err := decode([]byte(`{"properties":{"userProperties":null}}`), &m); err != nil {
		t.Errorf("null: %v", err)
	}
}
