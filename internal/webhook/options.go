package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// What follows from a question that is not answered as it must be.
const (
	Deny   = "deny"   // the client is refused. The default
	Ignore = "ignore" // the client proves who it is in another way, as if the answer were ignore
)

// Options of New. A zero field but URL means its default.
type Options struct {
	URL        string        // http or https; empty: there is no webhook
	HeaderFile string        // whose first line is a header, NAME: VALUE, that goes with each question; empty: none
	CA         string        // PEM file with the authorities of the server's certificate; empty: those of the system
	Cert, Key  string        // PEM files with the certificate that is shown to the server; empty: none
	Timeout    time.Duration // for a question, with its wait for a place; default DefaultTimeout
	Failure    string        // default Deny
	Requests   int           // questions under way; default DefaultRequests
	Queue      int           // questions that wait for one of those places; default DefaultQueue
	Remember   time.Duration // how long an allow is remembered; default DefaultRemember
	Denied     time.Duration // how long a deny or an ignore is; default DefaultDenied
	MaxBytes   int64         // of answers that are remembered; default DefaultMaxBytes
}

// Defaults and bounds.
const (
	DefaultTimeout  = 5 * time.Second
	DefaultRequests = 16
	DefaultQueue    = 1000
	DefaultRemember = time.Minute
	DefaultDenied   = 5 * time.Second
	DefaultMaxBytes = 16 << 20

	MaxRequests   = 10_000
	MaxQueue      = 1_000_000
	MaxRules      = 1000     // topic filters and keys in the rules of an answer
	maxAttributes = 128      // of an answer
	maxAnswer     = 64 << 10 // bytes of an answer
	maxName       = 65535    // bytes of a user name, as in MQTT

	maxExpires = 253402300799 // the end of the year 9999, in seconds since 1970
)

// WithDefaults puts its default in place of each zero field but URL.
func (o Options) WithDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.Failure = cmp.Or(o.Failure, Deny)
	o.Requests = cmp.Or(o.Requests, DefaultRequests)
	o.Queue = cmp.Or(o.Queue, DefaultQueue)
	o.Remember = cmp.Or(o.Remember, DefaultRemember)
	o.Denied = cmp.Or(o.Denied, DefaultDenied)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	return o
}

// Check says what is wrong with the options, by the names of the settings.
func (o *Options) Check() error {
	if o.URL == "" {
		if o.HeaderFile != "" || o.CA != "" || o.Cert != "" || o.Key != "" {
			return errors.New("--webhook-header-file, --webhook-ca, --webhook-cert and --webhook-key need --webhook URL")
		}
		return nil
	}
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("--webhook: want a URL such as https://auth.example.com/holdfast")
	case u.User != nil:
		return errors.New("--webhook: the URL has a user name; put the secret into the file of --webhook-header-file, as Authorization: Basic …")
	case u.Fragment != "":
		return errors.New("--webhook: the URL has a #, which no server sees")
	case u.Scheme == "http" && (o.CA != "" || o.Cert != ""):
		return errors.New("--webhook-ca and --webhook-cert need an https:// URL in --webhook")
	case (o.Cert == "") != (o.Key == ""):
		return errors.New("--webhook-cert and --webhook-key go together")
	case o.Requests < 0 || o.Queue < 0 || o.Timeout < 0 || o.Remember < 0 || o.Denied < 0 || o.MaxBytes < 0:
		return errors.New("--webhook: a bound is below 0")
	case o.Failure != "" && o.Failure != Deny && o.Failure != Ignore:
		return fmt.Errorf("--webhook-failure %q: want %s or %s", o.Failure, Deny, Ignore)
	}
	return nil
}

// Files are those that the options name.
func (o *Options) Files() (files []string) {
	for _, f := range []string{o.HeaderFile, o.CA, o.Cert, o.Key} {
		if f != "" {
			files = append(files, f)
		}
	}
	return files
}
