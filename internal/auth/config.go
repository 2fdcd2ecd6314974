package auth

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/webhook"
)

// Config says how clients prove who they are. The zero value asks none.
type Config struct {
	PasswordFile string // in the format of mosquitto_passwd
	JWTKeys      string // file with the public keys of tokens: JWKS or PEM
	JWTIssuer    string // claim iss of every token; empty: any
	JWTAudience  []string
	JWTUsername  string          // claim that the user name of a CONNECT must equal; empty: it may be anything
	TLSIdentity  TLSName         // what of a client certificate is its client's name
	Certificates bool            // some listener asks for client certificates
	BindClientID Binding         // what the client ID must be
	Anonymous    bool            // clients without credentials may connect to every listener
	MaxChecks    int             // passwords checked at a time; 0: all processors but one
	LoginBurst   int             // failed logins of one address and user name before it must wait; 0: DefaultBurst
	LoginPause   time.Duration   // until it has another one; 0: DefaultPause
	Webhook      webhook.Options // that is asked who clients are; without a URL: none
	ConnectTime  time.Duration   // that a client has for its CONNECT: bounds how long a check may wait; 0: 10 s

	CheckRules func(*access.Rules) error // what is wrong with the rules in an answer of the webhook; nil: nothing
	Log        *slog.Logger              // for what goes wrong with the webhook; nil: none
	Now        func() time.Time          // nil: time.Now
}

// Defaults and bounds.
const (
	DefaultBurst = 10
	DefaultPause = 2 * time.Second

	maxFailures = 1 << 14 // entries of the table of failed logins, about 100 bytes each
	maxWaiting  = 4096    // logins that wait for a check
	longestWait = 5 * time.Second
)

// Enabled says whether clients are asked who they are.
func (c *Config) Enabled() bool {
	return c.PasswordFile != "" || c.JWTKeys != "" || c.Certificates || c.Webhook.URL != ""
}

// Check says which settings contradict one another.
func (c *Config) Check() error {
	switch {
	case c.JWTKeys == "" && c.JWTIssuer != "":
		return errors.New("--jwt-issuer needs --jwt-keys FILE, the issuer's public keys")
	case c.JWTKeys == "" && len(c.JWTAudience) > 0:
		return errors.New("--jwt-audience needs --jwt-keys FILE, the issuer's public keys")
	case c.JWTKeys == "" && c.JWTUsername != "":
		return errors.New("--jwt-username needs --jwt-keys FILE, the issuer's public keys")
	case slices.Contains(c.JWTAudience, ""):
		return errors.New("--jwt-audience is empty: leave it out to take tokens for any audience")
	case c.TLSIdentity != "" && !c.Certificates:
		return errors.New("--tls-identity needs a listener with --tls-client-ca FILE, which verifies the clients' certificates")
	case c.BindClientID == BindCertificate && !c.Certificates:
		return errors.New("--bind-client-id certificate needs a listener with --tls-client-ca FILE, which verifies the clients' certificates")
	case c.Webhook.URL != "" && c.ConnectTime > 0 && cmp.Or(c.Webhook.Timeout, webhook.DefaultTimeout) >= c.ConnectTime:
		return fmt.Errorf("--webhook-timeout must be shorter than --connect-timeout %s, or clients end while they wait for the answer", c.ConnectTime)
	case c.BindClientID != "" && !c.Enabled():
		return fmt.Errorf("--bind-client-id %s needs clients that prove who they are: give --password-file, --jwt-keys, --webhook or --tls-client-ca", c.BindClientID)
	}
	return c.Webhook.Check()
}

// TLSName is what of a client certificate is its client's name.
type TLSName string

// The names that a certificate may have.
const (
	CommonName TLSName = "cn" // of the subject; what the empty TLSName means
	SANDNS     TLSName = "san-dns"
	SANURI     TLSName = "san-uri"
	SANEmail   TLSName = "san-email"
	Subject    TLSName = "subject" // the whole distinguished name, as RFC 2253 writes it
)

// Binding is what the client ID must be.
type Binding string

// The bindings.
const (
	BindUsername    Binding = "username"    // the user name that the client has proven
	BindCertificate Binding = "certificate" // the name in its certificate
)
