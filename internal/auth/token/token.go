package token

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// Bounds of a token.
const (
	// MaxLength is the longest token that is looked at, in bytes.
	MaxLength = 16 << 10
	// MaxClaims is how many claims a token may have, those inside of other claims
	// included.
	MaxClaims = 128
	// MaxAttribute is the longest claim that becomes an attribute, in bytes of name and
	// value each; no rule sees longer ones.
	MaxAttribute = 1024
	maxSubject   = 1024
	maxDepth     = 4 // of claims inside of claims that become attributes
	maxTries     = 8 // keys that a token without a kid is tried with
)

// Leeway is how far the issuer's clock and this machine's may be apart.
const Leeway = 30 * time.Second

// Why a token is refused. The errors have nothing of the token in them.
var (
	ErrMalformed  = errors.New("the token is malformed")
	ErrLong       = fmt.Errorf("the token has more than %d bytes", MaxLength)
	ErrAlgorithm  = errors.New("the token is signed with an algorithm that is not accepted")
	ErrKey        = errors.New("the token is signed with an unknown key")
	ErrSignature  = errors.New("the token's signature is wrong")
	ErrExpired    = errors.New("the token has expired")
	ErrNoExpiry   = errors.New("the token has no expiry")
	ErrNotYet     = errors.New("the token is not valid yet")
	ErrIssuer     = errors.New("the token is of another issuer")
	ErrAudience   = errors.New("the token is for another audience")
	ErrSubject    = errors.New("the token has no subject, or one that is too long or has control characters")
	ErrManyClaims = fmt.Errorf("the token has more than %d claims", MaxClaims)
)

// accepted are the algorithms of public keys; "none" and those with a shared secret are
// not.
var accepted = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// Rules say which tokens are taken.
type Rules struct {
	Issuer   string           // that a token must be of; empty: any
	Audience []string         // of which a token must name at least one; empty: any
	Now      func() time.Time // nil: time.Now
}

// Claims are what a token says, once it is verified.
type Claims struct {
	Issuer, Subject string
	Expires         time.Time
	// Attributes are the claims that are strings, numbers or booleans, those inside of
	// others with a dot between the names.
	Attributes map[string]string
	// Key is the key that the token is signed with, as Keys.Has knows it.
	Key KeyID
}

// Looks says whether a password has the form of a token.
func Looks(password []byte) bool {
	return len(password) > 4 && string(password[:3]) == "eyJ" && strings.Count(string(password), ".") == 2
}

var verifier = jwt.NewParser(jwt.WithValidMethods(accepted), jwt.WithStrictDecoding(), jwt.WithJSONNumber(), jwt.WithoutClaimsValidation())

// Verify verifies a token. It costs one check of a signature, or up to 16 if the token
// doesn't name its key and several would do.
func (r *Rules) Verify(keys *Keys, token []byte) (*Claims, error) {
	if len(token) > MaxLength {
		return nil, ErrLong
	}
	claims := jwt.MapClaims{}
	var refused error // why there is no key
	var candidates []*key
	parsed, err := verifier.ParseWithClaims(string(token), claims, func(t *jwt.Token) (any, error) {
		if candidates, refused = chosen(keys, t); refused != nil {
			return nil, refused
		}
		var set jwt.VerificationKeySet
		for _, k := range candidates {
			set.Keys = append(set.Keys, k.public)
		}
		return set, nil
	})
	switch {
	case err == nil:
	case refused != nil:
		return nil, refused
	case errors.Is(err, jwt.ErrTokenMalformed):
		return nil, ErrMalformed
	case errors.Is(err, jwt.ErrTokenUnverifiable):
		return nil, ErrAlgorithm
	case strings.Contains(err.Error(), "signing method"):
		return nil, ErrAlgorithm
	default:
		return nil, ErrSignature
	}
	c, err := r.judge(claims)
	if err == nil {
		c.Key = signer(parsed, candidates)
	}
	return c, err
}

// signer gives the one of several keys that a token is signed with, after one of them has
// verified it: the parser does not tell which.
func signer(t *jwt.Token, candidates []*key) KeyID {
	signed := t.Raw[:strings.LastIndexByte(t.Raw, '.')]
	for _, k := range candidates[:len(candidates)-1] {
		if t.Method.Verify(signed, t.Signature, k.public) == nil {
			return k.fingerprint
		}
	}
	return candidates[len(candidates)-1].fingerprint
}

// chosen are the keys that a token may be signed with.
func chosen(keys *Keys, t *jwt.Token) (set []*key, err error) {
	if _, critical := t.Header["crit"]; critical { // RFC 7515, section 4.1.11: extensions that must be understood
		return nil, ErrAlgorithm
	}
	id, isText := t.Header["kid"].(string)
	if t.Header["kid"] != nil && !isText {
		return nil, ErrMalformed
	}
	if set = keys.candidates(id, t.Method.Alg()); len(set) == 0 {
		return nil, ErrKey
	}
	return set[:min(len(set), maxTries)], nil
}

// judge says whether the claims of a token whose signature is right are good enough.
func (r *Rules) judge(claims jwt.MapClaims) (*Claims, error) {
	now := time.Now()
	if r.Now != nil {
		now = r.Now()
	}
	if count(claims) > MaxClaims {
		return nil, ErrManyClaims
	}
	c := &Claims{}
	var ok bool
	if c.Expires, ok = date(claims["exp"]); !ok {
		return nil, ErrNoExpiry
	}
	c.Expires = c.Expires.Add(Leeway)
	if !now.Before(c.Expires) {
		return nil, ErrExpired
	}
	if from, given := claims["nbf"]; given {
		if at, ok := date(from); !ok || now.Add(Leeway).Before(at) {
			return nil, ErrNotYet
		}
	}
	c.Issuer, _ = claims["iss"].(string)
	if r.Issuer != "" && c.Issuer != r.Issuer {
		return nil, ErrIssuer
	}
	if len(r.Audience) > 0 && !slices.ContainsFunc(audience(claims["aud"]), func(a string) bool { return slices.Contains(r.Audience, a) }) {
		return nil, ErrAudience
	}
	if c.Subject, _ = claims["sub"].(string); !plain(c.Subject, maxSubject) || c.Subject == "" || !plain(c.Issuer, maxSubject) {
		return nil, ErrSubject
	}
	c.Attributes = make(map[string]string)
	flatten(c.Attributes, "", claims, 0)
	return c, nil
}

// plain says whether a name can be one of a principal.
func plain(s string, most int) bool {
	return len(s) <= most && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 })
}

// date reads a NumericDate, seconds since 1970. What is out of the calendar is none.
func date(claim any) (time.Time, bool) {
	n, isNumber := claim.(json.Number)
	if !isNumber {
		return time.Time{}, false
	}
	seconds, err := n.Float64()
	if err != nil || math.IsNaN(seconds) || seconds < 0 || seconds > 253402300799 { // the end of year 9999
		return time.Time{}, false
	}
	return time.Unix(int64(seconds), 0), true
}

// audience reads a string, or strings.
func audience(claim any) (all []string) {
	switch c := claim.(type) {
	case string:
		return []string{c}
	case []any:
		for _, a := range c {
			if s, ok := a.(string); ok {
				all = append(all, s)
			}
		}
	}
	return all
}

// count counts claims with those inside of them, and elements of arrays.
func count(claim any) (n int) {
	switch c := claim.(type) {
	case jwt.MapClaims:
		return count(map[string]any(c))
	case map[string]any:
		for _, v := range c {
			n += 1 + count(v)
		}
	case []any:
		for _, v := range c {
			n += 1 + count(v)
		}
	}
	return n
}

// flatten makes attributes of claims.
func flatten(to map[string]string, prefix string, claims map[string]any, depth int) {
	for name, claim := range claims {
		name = prefix + name
		var value string
		switch c := claim.(type) {
		case string:
			value = c
		case json.Number:
			value = c.String()
		case bool:
			value = fmt.Sprint(c)
		case map[string]any:
			if depth+1 < maxDepth {
				flatten(to, name+".", c, depth+1)
			}
			continue
		default:
			continue
		}
		if len(name) > MaxAttribute || len(value) > MaxAttribute {
			continue
		}
		if _, twice := to[name]; twice { // "a.b" beside "a": {"b": …}: neither can be told from the other
			value = ""
		}
		to[name] = value
	}
}
