package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var (
	rsaKey, _      = rsa.GenerateKey(rand.Reader, 2048)
	otherRSA, _    = rsa.GenerateKey(rand.Reader, 2048)
	p256, _        = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p384, _        = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	p521, _        = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	_, edKey, _    = ed25519.GenerateKey(rand.Reader)
	today          = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rules          = Rules{Issuer: "https://issuer", Audience: []string{"holdfast", "other"}, Now: func() time.Time { return today }}
	b64            = base64.RawURLEncoding.EncodeToString
	keysOfThisTest = mustParse(jwks(jwkOf("r", &rsaKey.PublicKey), jwkOf("p256", &p256.PublicKey), jwkOf("p384", &p384.PublicKey), jwkOf("p521", &p521.PublicKey), jwkOf("ed", edKey.Public())))
	goodClaims     = jwt.MapClaims{"iss": "https://issuer", "aud": "holdfast", "sub": "alice", "exp": today.Add(time.Hour).Unix()}
	signers        = map[string]crypto.Signer{"RS256": rsaKey, "RS384": rsaKey, "RS512": rsaKey, "PS256": rsaKey, "PS384": rsaKey, "PS512": rsaKey, "ES256": p256, "ES384": p384, "ES512": p521, "EdDSA": edKey}
	kidOf          = map[string]string{"ES256": "p256", "ES384": "p384", "ES512": "p521", "EdDSA": "ed"}
	publicPEM      = pemOf("PUBLIC KEY", rsaKey.Public())
)

func mustParse(data string) *Keys {
	keys, err := ParseKeys("keys", []byte(data))
	if err != nil {
		panic(err)
	}
	return keys
}

func pemOf(typ string, public any) string {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}))
}

func jwks(keys ...map[string]any) string {
	b, err := json.MarshalIndent(map[string]any{"keys": keys}, "", " ")
	if err != nil {
		panic(err)
	}
	return string(b)
}

func jwkOf(kid string, public any) map[string]any {
	k := map[string]any{"kid": kid, "use": "sig"}
	switch p := public.(type) {
	case *rsa.PublicKey:
		k["kty"], k["n"], k["e"] = "RSA", b64(p.N.Bytes()), "AQAB"
	case *ecdsa.PublicKey:
		point, _ := p.Bytes()
		half := len(point) / 2
		k["kty"], k["crv"], k["x"], k["y"] = "EC", p.Params().Name, b64(point[1:1+half]), b64(point[1+half:])
	case ed25519.PublicKey:
		k["kty"], k["crv"], k["x"] = "OKP", "Ed25519", b64(p)
	}
	return k
}

// sign makes a token. The header's fields may be changed.
func sign(tb testing.TB, alg string, claims jwt.MapClaims, header ...map[string]any) string {
	tb.Helper()
	t := jwt.NewWithClaims(jwt.GetSigningMethod(alg), claims)
	for _, h := range header {
		maps.Copy(t.Header, h)
	}
	s, err := t.SignedString(signers[alg])
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// with are the good claims but for some; nil takes one away.
func with(changes map[string]any) jwt.MapClaims {
	c := maps.Clone(goodClaims)
	for k, v := range changes {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

func TestVerifiesEachAlgorithm(t *testing.T) {
	t.Parallel()
	for alg := range signers {
		kid := kidOf[alg]
		if kid == "" {
			kid = "r"
		}
		for _, header := range []map[string]any{{"kid": kid}, {}} {
			c, err := rules.Verify(keysOfThisTest, []byte(sign(t, alg, goodClaims, header)))
			if err != nil {
				t.Errorf("%s %v: %v", alg, header, err)
				continue
			}
			if c.Subject != "alice" || c.Issuer != "https://issuer" || !c.Expires.Equal(today.Add(time.Hour+Leeway)) {
				t.Errorf("%s: got %+v", alg, c)
			}
		}
	}
}

// What attackers try with tokens.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	good := sign(t, "RS256", goodClaims, map[string]any{"kid": "r"})
	parts := strings.Split(good, ".")
	body, _ := json.Marshal(with(map[string]any{"sub": "root"}))
	raw := func(header, claims string) string { return b64([]byte(header)) + "." + b64([]byte(claims)) + "." }
	hmac := func(secret string) string {
		s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, goodClaims).SignedString([]byte(secret))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, goodClaims).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := jwt.NewWithClaims(jwt.SigningMethodRS256, goodClaims).SignedString(otherRSA)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token string
		want  error
	}{
		"without a signature":            {parts[0] + "." + parts[1] + ".", ErrSignature},
		"with other claims":              {parts[0] + "." + b64(body) + "." + parts[2], ErrSignature},
		"with the algorithm none":        {unsigned, ErrAlgorithm},
		"with None in capitals":          {raw(`{"alg":"NONE"}`, string(body)), ErrAlgorithm},
		"with HMAC and the public key":   {hmac(publicPEM), ErrAlgorithm},
		"with HMAC and no secret":        {hmac(""), ErrAlgorithm},
		"without an algorithm":           {raw(`{"typ":"JWT"}`, string(body)), ErrAlgorithm},
		"of another key":                 {foreign, ErrSignature},
		"of an unknown key ID":           {sign(t, "RS256", goodClaims, map[string]any{"kid": "x"}), ErrKey},
		"of a key of another algorithm":  {sign(t, "RS256", goodClaims, map[string]any{"kid": "p256"}), ErrKey},
		"with a key ID that is no text":  {sign(t, "RS256", goodClaims, map[string]any{"kid": 7}), ErrMalformed},
		"with a critical extension":      {sign(t, "RS256", goodClaims, map[string]any{"crit": []string{"exp"}}), ErrAlgorithm},
		"with its own key":               {sign(t, "RS256", goodClaims, map[string]any{"kid": "evil", "jwk": jwkOf("evil", &otherRSA.PublicKey)}), ErrKey},
		"padded":                         {good + "=", ErrMalformed},
		"in two parts":                   {parts[0] + "." + parts[1], ErrMalformed},
		"in four parts":                  {good + ".x", ErrMalformed},
		"empty":                          {"", ErrMalformed},
		"of bytes":                       {"\xff.\x00.\xff", ErrMalformed},
		"with claims that are no object": {raw(`{"alg":"RS256"}`, `[1]`) + "x", ErrMalformed},
	} {
		if _, err := rules.Verify(keysOfThisTest, []byte(c.token)); !errors.Is(err, c.want) {
			t.Errorf("a token %s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) int64 { return today.Add(d).Unix() }
	for _, c := range []struct {
		change map[string]any
		want   error
	}{
		{map[string]any{"exp": at(-Leeway + time.Second)}, nil},
		{map[string]any{"exp": at(-Leeway)}, ErrExpired},
		{map[string]any{"exp": nil}, ErrNoExpiry},
		{map[string]any{"exp": "tomorrow"}, ErrNoExpiry},
		{map[string]any{"exp": 1e300}, ErrNoExpiry},
		{map[string]any{"exp": -1}, ErrNoExpiry},
		{map[string]any{"nbf": at(Leeway)}, nil},
		{map[string]any{"nbf": at(Leeway + time.Second)}, ErrNotYet},
		{map[string]any{"nbf": "x"}, ErrNotYet},
		{map[string]any{"iss": "https://other"}, ErrIssuer},
		{map[string]any{"iss": nil}, ErrIssuer},
		{map[string]any{"aud": "elsewhere"}, ErrAudience},
		{map[string]any{"aud": []string{"elsewhere", "other"}}, nil},
		{map[string]any{"aud": []any{1, "elsewhere"}}, ErrAudience},
		{map[string]any{"aud": nil}, ErrAudience},
		{map[string]any{"sub": nil}, ErrSubject},
		{map[string]any{"sub": ""}, ErrSubject},
		{map[string]any{"sub": "a\nb"}, ErrSubject},
		{map[string]any{"sub": strings.Repeat("x", maxSubject)}, nil},
		{map[string]any{"sub": strings.Repeat("x", maxSubject+1)}, ErrSubject},
	} {
		if _, err := rules.Verify(keysOfThisTest, []byte(sign(t, "ES256", with(c.change)))); !errors.Is(err, c.want) {
			t.Errorf("%v: got %v, want %v", c.change, err, c.want)
		}
	}
	open := Rules{Now: rules.Now}
	if _, err := open.Verify(keysOfThisTest, []byte(sign(t, "ES256", with(map[string]any{"iss": nil, "aud": nil})))); err != nil {
		t.Errorf("without rules for issuer and audience: %v", err)
	}
}

func TestBoundsOfATokens(t *testing.T) {
	t.Parallel()
	many := func(n int) jwt.MapClaims {
		c := with(nil) // four claims
		inner := map[string]any{}
		for i := range n - 5 {
			inner[fmt.Sprint("c", i)] = 1
		}
		c["x"] = inner
		return c
	}
	if _, err := rules.Verify(keysOfThisTest, []byte(sign(t, "ES256", many(MaxClaims)))); err != nil {
		t.Errorf("%d claims: %v", MaxClaims, err)
	}
	if _, err := rules.Verify(keysOfThisTest, []byte(sign(t, "ES256", many(MaxClaims+1)))); !errors.Is(err, ErrManyClaims) {
		t.Errorf("%d claims: got %v, want ErrManyClaims", MaxClaims+1, err)
	}
	long := sign(t, "ES256", with(map[string]any{"x": strings.Repeat("x", MaxLength*3/4-400)}))
	if len(long) > MaxLength {
		t.Fatalf("the test's token has %d bytes", len(long))
	}
	if _, err := rules.Verify(keysOfThisTest, []byte(long)); err != nil {
		t.Errorf("%d bytes: %v", len(long), err)
	}
	if _, err := rules.Verify(keysOfThisTest, make([]byte, MaxLength+1)); !errors.Is(err, ErrLong) {
		t.Errorf("%d bytes: got %v, want ErrLong", MaxLength+1, err)
	}
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	c, err := rules.Verify(keysOfThisTest, []byte(sign(t, "EdDSA", with(map[string]any{
		"kubernetes.io": map[string]any{"namespace": "plant", "pod": map[string]any{"name": "p1", "deep": map[string]any{"deeper": map[string]any{"deepest": "x"}}}},
		"level":         7, "admin": true, "groups": []string{"a"}, "none": nil,
		"long": strings.Repeat("x", MaxAttribute+1),
		"a.b":  "one", "a": map[string]any{"b": "two"},
	}))))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"iss": "https://issuer", "aud": "holdfast", "sub": "alice", "exp": fmt.Sprint(today.Add(time.Hour).Unix()),
		"kubernetes.io.namespace": "plant", "kubernetes.io.pod.name": "p1", "level": "7", "admin": "true", "a.b": "",
	}
	if !maps.Equal(c.Attributes, want) {
		t.Errorf("got  %v\nwant %v", c.Attributes, want)
	}
}

func TestLooks(t *testing.T) {
	t.Parallel()
	if !Looks([]byte(sign(t, "ES256", goodClaims))) {
		t.Error("a token does not look like one")
	}
	for _, password := range []string{"", "eyJ", "secret", "a.b.c", "eyJ.b", "eyJ.b.c.d"} {
		if Looks([]byte(password)) {
			t.Errorf("%q looks like a token", password)
		}
	}
}

func TestKeysFromPEM(t *testing.T) {
	t.Parallel()
	keys := mustParse("# of the issuer\n" + publicPEM + "\n" + pemOf("PUBLIC KEY", p256.Public()) + pemOf("PUBLIC KEY", edKey.Public()))
	if keys.Len() != 3 {
		t.Errorf("got %d keys, want 3", keys.Len())
	}
	// They have no key ID, so whatever a token says of it counts for nothing.
	for _, alg := range []string{"PS256", "ES256", "EdDSA"} {
		if _, err := rules.Verify(keys, []byte(sign(t, alg, goodClaims, map[string]any{"kid": "any"}))); err != nil {
			t.Errorf("%s: %v", alg, err)
		}
	}
}

func TestBrokenKeys(t *testing.T) {
	t.Parallel()
	weak, _ := rsa.GenerateKey(rand.Reader, 1024)
	p224, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	private := jwkOf("x", &rsaKey.PublicKey)
	private["d"] = "AQAB"
	change := func(k map[string]any, name string, value any) map[string]any { k[name] = value; return k }
	var many []map[string]any
	for i := range maxKeys {
		many = append(many, jwkOf(fmt.Sprint(i), edKey.Public()))
	}
	mustParse(jwks(many...))
	for _, c := range []struct{ content, want string }{
		{"", "keys: there is no key"},
		{"hello", "keys: there is no key"},
		{"{\n\"keys\": [\n}", "keys:3: not JSON"},
		{`{"keys": 7}`, "keys:1: want a JWKS"},
		{`{"keys": []}`, "keys: there is no key"},
		{jwks(change(jwkOf("x", edKey.Public()), "use", "enc")), "there is no key"},
		{jwks(map[string]any{"kty": "new"}), "there is no key"},
		{"{\"keys\": [\n{\"kty\": \"oct\", \"k\": \"AAAA\"}]}", "keys:2: a symmetric key"},
		{jwks(private), "keys:3: a private key"},
		{jwks(jwkOf("x", &weak.PublicKey)), "keys:3: the RSA key has 1024 bits"},
		{jwks(change(jwkOf("x", &rsaKey.PublicKey), "e", b64([]byte{2}))), "exponent 2"},
		{jwks(change(jwkOf("x", &rsaKey.PublicKey), "e", b64([]byte{1}))), "exponent 1"},
		{jwks(change(jwkOf("x", &rsaKey.PublicKey), "n", "?")), "want n and e"},
		{jwks(change(jwkOf("x", &p256.PublicKey), "y", b64(make([]byte, 32)))), "no point of the curve"},
		{jwks(change(jwkOf("x", &p256.PublicKey), "x", "AA")), "want x and y of 32 bytes"},
		{jwks(change(jwkOf("x", edKey.Public()), "x", "AA")), "want x of 32 bytes"},
		{jwks(change(jwkOf("x", &p256.PublicKey), "alg", "RS256")), `not one for algorithm "RS256"`},
		{jwks(change(jwkOf("x", edKey.Public()), "alg", "none")), `not one for algorithm "none"`},
		{jwks(jwkOf("x", &rsaKey.PublicKey), jwkOf("y", edKey.Public()), jwkOf("x", &otherRSA.PublicKey)), `another key with the kid "x"`},
		{jwks(append(many, jwkOf("z", edKey.Public()))...), "more than 100 keys"},
		{jwks(jwkOf(strings.Repeat("x", 257), edKey.Public())), "more than 256 bytes"},
		{publicPEM + pemOf("PRIVATE KEY", rsaKey.Public()), `keys:10: a PEM block "PRIVATE KEY"`},
		{"-----BEGIN PUBLIC KEY-----\nAAAA\n", "keys:1: this PEM block cannot be read"},
		{string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), "keys:1: this PEM block cannot be read"},
		{pemOf("PUBLIC KEY", p224.Public()), "none of P-256"},
	} {
		_, err := ParseKeys("keys", []byte(c.content))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.300s\n: got %v, want an error with %q", c.content, err, c.want)
		}
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte(jwks(jwkOf("r", &rsaKey.PublicKey), jwkOf("p256", &p256.PublicKey), jwkOf("ed", edKey.Public()))))
	f.Add([]byte(publicPEM))
	f.Add([]byte(`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := ParseKeys("keys", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "keys:") {
				t.Errorf("the error doesn't name the file: %v", err)
			}
			return
		}
		if keys.Len() == 0 || keys.Len() > maxKeys {
			t.Errorf("%d keys", keys.Len())
		}
		for _, k := range keys.keys {
			if len(k.algs) == 0 {
				t.Error("a key without an algorithm")
			}
		}
	})
}

// Only what a key has signed is taken, and no error repeats a part of the token.
func FuzzToken(f *testing.F) {
	signed := map[string]bool{}
	for _, alg := range []string{"ES256", "EdDSA", "RS256"} {
		s := sign(f, alg, with(map[string]any{"x": map[string]any{"y": []any{1, "z"}}}))
		signed[s] = true
		f.Add([]byte(s))
	}
	f.Add([]byte("eyJhbGciOiJub25lIn0.e30."))
	f.Add([]byte(".."))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := rules.Verify(keysOfThisTest, data)
		if err == nil && !signed[string(data)] {
			// ECDSA has a second signature for each, and no other one.
			if cut := strings.LastIndexByte(string(data), '.'); cut < 0 || !hasPrefix(signed, string(data[:cut+1])) {
				t.Errorf("a forged token is taken: %q", data)
			}
		}
		if err != nil && len(data) > 8 && strings.Contains(err.Error(), string(data)) {
			t.Errorf("the error repeats the token: %v", err)
		}
	})
}

func hasPrefix(signed map[string]bool, prefix string) bool {
	for s := range signed {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}

func BenchmarkVerify(b *testing.B) {
	for _, alg := range []string{"RS256", "ES256", "EdDSA"} {
		s := []byte(sign(b, alg, goodClaims))
		b.Run(alg, func(b *testing.B) {
			for b.Loop() {
				if _, err := rules.Verify(keysOfThisTest, s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
