package secrets

import (
	"errors"
	"net/url"
	"testing"
)

func TestURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                   "",
		"https://auth.example.com/holdfast":  "https://auth.example.com/holdfast",
		"127.0.0.1:1883":                     "127.0.0.1:1883",
		"https://h/a@b":                      "https://h/a@b",
		"https://u:secret@h:1/x":             "https://…@h:1/x",
		"https://h/x?token=secret":           "https://h/x?…",
		"https://h/x?mail=a@b&token=secret":  "https://h/x?…",
		"https://u:se@cret@h/x?token=secret": "https://…@h/x?…",
		"https://h/x#secret":                 "https://h/x?…",
		"mqtt://u:se/cr?et@h:1":              "…",
		"mqtt://u:se cret@h:1":               "…",
		"u:secret@h:1883":                    "…",
	} {
		if got := URL(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestHost(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "",
		"https://auth.example.com":          "https://auth.example.com",
		"https://auth.example.com/":         "https://auth.example.com",
		"http://127.0.0.1:8080/holdfast":    "http://127.0.0.1:8080/…",
		"https://h/hooks/secret":            "https://h/…",
		"https://h?token=secret":            "https://h/…",
		"https://h/#secret":                 "https://h/…",
		"https://u:secret@h:1/hooks/secret": "https://…@h:1/…",
		"hooks/secret":                      "…",
		"https:secret":                      "…",
		"https://h/se cret\x7f":             "…",
	} {
		if got := Host(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestHeader(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Authorization: Bearer secret": "Authorization=…",
		"X-Key=secret":                 "X-Key=…",
		"secret":                       "…",
	} {
		if got := Header(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestOfRequest(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	if got := OfRequest(&url.Error{Op: "Post", URL: "http://h/?token=secret", Err: refused}); got != refused {
		t.Error(got)
	}
	if got := OfRequest(refused); got != refused {
		t.Error(got)
	}
}
