package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/jsontext"
)

// Question is what the webhook is asked about a CONNECT, as JSON.
type Question struct {
	ClientID       string `json:"client_id"`
	Username       string `json:"username,omitempty"`
	Password       string `json:"password,omitempty"`        // if it is UTF-8
	PasswordBase64 []byte `json:"password_base64,omitempty"` // if it is not
	Remote         string `json:"remote"`                    // HOST:PORT of the client
	Protocol       string `json:"protocol"`                  // 3.1, 3.1.1 or 5
	Listener       string `json:"listener,omitempty"`        // URL of the listener
	CertificateCN  string `json:"certificate_cn,omitempty"`  // of a certificate that the client has shown and that was verified
}

// SetPassword puts the password into the field that takes it.
func (q *Question) SetPassword(password []byte) {
	if utf8.Valid(password) {
		q.Password = string(password)
		return
	}
	q.PasswordBase64 = password
}

// What an answer may say of a client.
const (
	Allowed = "allow"  // it is who the question says it is, or who the answer says
	Denied  = "deny"   // it is refused
	Ignored = "ignore" // the webhook does not know it: it proves who it is in another way
)

// Answer is what the webhook answers, as JSON. It is not changed.
type Answer struct {
	Result     string            `json:"result"`               // Allowed, Denied or Ignored
	Username   string            `json:"username,omitempty"`   // the client's user name; empty: that of the question
	Attributes map[string]string `json:"attributes,omitempty"` // of the client, for rules and groups of the policy
	Rules      *access.Rules     `json:"rules,omitempty"`      // what the client may do; nil: what the policy says
	Expires    int64             `json:"expires,omitempty"`    // when the client is to be disconnected, in seconds since 1970; 0: never
}

// Until is when the client is to be disconnected; zero: never.
func (a *Answer) Until() time.Time {
	if a.Expires == 0 {
		return time.Time{}
	}
	return time.Unix(a.Expires, 0)
}

// parse reads an answer.
func parse(text []byte, checkRules func(*access.Rules) error) (*Answer, error) {
	if len(text) > maxAnswer {
		return nil, fmt.Errorf("the answer has more than %d KiB", maxAnswer>>10)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	a := new(Answer)
	if err := d.Decode(a); err != nil {
		return nil, fmt.Errorf("the answer is not the JSON that it must be: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the answer goes on behind its JSON")
	}
	if err := jsontext.Check(text); err != nil { // or clients of different names would be one principal
		return nil, fmt.Errorf("the answer is no text: %w", err)
	}
	switch {
	case a.Result != Allowed && a.Result != Denied && a.Result != Ignored:
		return nil, fmt.Errorf("the answer's result is %q: want %s, %s or %s", cut(a.Result), Allowed, Denied, Ignored)
	case a.Expires < 0:
		return nil, errors.New("the answer's expires is below 0")
	case a.Expires > maxExpires:
		return nil, errors.New("the answer's expires is after the year 9999: want seconds since 1970, not milliseconds, and 0 or no expires for never")
	case len(a.Username) > maxName:
		return nil, fmt.Errorf("the answer's username has more than %d bytes", maxName)
	case strings.ContainsFunc(a.Username, unicode.IsControl):
		return nil, errors.New("the answer's username has a control character")
	case len(a.Attributes) > maxAttributes:
		return nil, fmt.Errorf("the answer has %d attributes, more than %d", len(a.Attributes), maxAttributes)
	case a.Rules.Len() > MaxRules:
		return nil, fmt.Errorf("the rules of the answer have %d topic filters and keys, more than %d", a.Rules.Len(), MaxRules)
	}
	if a.Rules != nil && checkRules != nil {
		if err := checkRules(a.Rules); err != nil {
			return nil, fmt.Errorf("the rules of the answer: %w", err)
		}
	}
	return a, nil
}

// cut bounds a text of an answer in an error.
func cut(s string) string {
	const most = 40
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
