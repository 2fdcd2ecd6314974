package token

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"slices"
)

// Bounds of a file of keys.
const (
	maxFile    = 1 << 20 // bytes
	maxKeys    = 100
	minRSA     = 2048 // bits
	maxRSA     = 8192 // bits; a larger key would make each login slow
	maxKeyName = 256
)

// Keys are the public keys that tokens may be signed with. They don't change, and are
// safe for concurrent use.
type Keys struct{ keys []key }

type key struct {
	id          string // kid; empty: it has none
	public      crypto.PublicKey
	algs        []string // that it may be used with
	fingerprint KeyID
}

// KeyID tells public keys apart, in whatever form and under whatever kid a file has them:
// it is the SHA-256 of the key as PKIX has it.
type KeyID [sha256.Size]byte

// Len is how many keys there are.
func (k *Keys) Len() int { return len(k.keys) }

// Has says whether a key is among them.
func (k *Keys) Has(id KeyID) bool {
	return slices.ContainsFunc(k.keys, func(one key) bool { return one.fingerprint == id })
}

// LoadKeys reads a file of public keys. Errors name the file, and the line where there
// is one.
func LoadKeys(path string) (*Keys, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the keys of tokens: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: want a JWKS or PEM file with public keys, and this is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the keys of tokens: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: cannot read the keys of tokens: %w", path, err)
	}
	return ParseKeys(path, data)
}

// ParseKeys reads a JWKS, or public keys and certificates in PEM. name is for errors.
func ParseKeys(name string, data []byte) (*Keys, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: a file of keys has at most %d MiB", name, maxFile>>20)
	}
	p := parser{name: name, data: data}
	parse := p.pem
	if trimmed := bytes.TrimLeft(data, " \t\r\n\ufeff"); len(trimmed) > 0 && trimmed[0] == '{' {
		parse = p.jwks
	}
	if err := parse(); err != nil {
		return nil, err
	}
	if len(p.keys) == 0 {
		return nil, fmt.Errorf("%s: there is no key that can verify a token; want a JWKS, or PEM blocks PUBLIC KEY or CERTIFICATE", name)
	}
	return &Keys{p.keys}, nil
}

// parser reads one file.
type parser struct {
	name string
	data []byte
	keys []key
}

// fail is an error at an offset of the file.
func (p *parser) fail(offset int64, format string, args ...any) error {
	before := p.data[:min(max(offset, 0), int64(len(p.data)))]
	return fmt.Errorf("%s:%d: %w", p.name, bytes.Count(before, []byte("\n"))+1, fmt.Errorf(format, args...))
}

// add takes a key.
func (p *parser) add(offset int64, id string, public crypto.PublicKey, alg string) error {
	algs, err := algorithms(public)
	if err != nil {
		return p.fail(offset, "%w", err)
	}
	if alg != "" {
		if !slices.Contains(algs, alg) {
			return p.fail(offset, "the key is not one for algorithm %.20q, which it names; its kind is used with %v", alg, algs)
		}
		algs = []string{alg}
	}
	if len(p.keys) == maxKeys {
		return p.fail(offset, "there are more than %d keys", maxKeys)
	}
	for i := range p.keys {
		if other := &p.keys[i]; id != "" && other.id == id && slices.Equal(other.algs, algs) {
			return p.fail(offset, "there is another key with the kid %.100q", id)
		}
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return p.fail(offset, "%w", err)
	}
	p.keys = append(p.keys, key{id, public, algs, sha256.Sum256(der)})
	return nil
}

// algorithms are those that a key can be used with.
func algorithms(public crypto.PublicKey) ([]string, error) {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSA || bits > maxRSA {
			return nil, fmt.Errorf("the RSA key has %d bits; want %d to %d", bits, minRSA, maxRSA)
		}
		if k.E < 3 || k.E&1 == 0 {
			return nil, fmt.Errorf("the RSA key has the exponent %d; want an odd one above 1", k.E)
		}
		return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return []string{"ES256"}, nil
		case elliptic.P384():
			return []string{"ES384"}, nil
		case elliptic.P521():
			return []string{"ES512"}, nil
		}
		return nil, errors.New("the curve of the key is none of P-256, P-384 and P-521")
	case ed25519.PublicKey:
		return []string{"EdDSA"}, nil
	}
	return nil, fmt.Errorf("keys of type %T cannot verify tokens; want RSA, EC or Ed25519", public)
}

func (p *parser) pem() error {
	rest := p.data
	for {
		at := int64(len(p.data) - len(rest))
		if i := bytes.Index(rest, []byte("-----BEGIN")); i >= 0 {
			at += int64(i)
		} else {
			return nil
		}
		block, after := pem.Decode(rest)
		if block == nil {
			return p.fail(at, "this PEM block cannot be read")
		}
		rest = after
		var public crypto.PublicKey
		var err error
		switch block.Type {
		case "PUBLIC KEY":
			public, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "RSA PUBLIC KEY":
			public, err = x509.ParsePKCS1PublicKey(block.Bytes)
		case "CERTIFICATE":
			var cert *x509.Certificate
			if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
				public = cert.PublicKey
			}
		default:
			return p.fail(at, "a PEM block %.40q; want PUBLIC KEY or CERTIFICATE (a private key does not belong here: openssl pkey -pubout writes its public key)", block.Type)
		}
		if err != nil {
			return p.fail(at, "this PEM block cannot be read: %w", err)
		}
		if err := p.add(at, "", public, ""); err != nil {
			return err
		}
	}
}

// jwk is a key of a JWKS.
type jwk struct {
	Kty, Use, Kid, Alg, Crv string
	N, E, X, Y              string
	D, K                    json.RawMessage
}

func (p *parser) jwks() error {
	var set struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(p.data, &set); err != nil {
		var syntax *json.SyntaxError
		var typ *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			return p.fail(syntax.Offset, "not JSON: %w", err)
		case errors.As(err, &typ):
			return p.fail(typ.Offset, `want a JWKS, {"keys": [...]}: %w`, err)
		}
		return p.fail(0, "%w", err)
	}
	from := int64(0)
	for _, raw := range set.Keys {
		at := from + int64(bytes.Index(p.data[from:], raw))
		from = at + int64(len(raw))
		if err := p.jwk(at, raw); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) jwk(at int64, raw []byte) error {
	var k jwk
	if err := json.Unmarshal(raw, &k); err != nil {
		return p.fail(at, "a key that makes no sense: %w", err)
	}
	switch {
	case k.Kty == "oct" || k.K != nil:
		return p.fail(at, "a symmetric key, with which the server could sign tokens as well; want the public keys of the issuer")
	case k.D != nil:
		return p.fail(at, "a private key does not belong here; leave out the member d and the others that are private")
	case k.Use != "" && k.Use != "sig":
		return nil // for encryption
	case len(k.Kid) > maxKeyName:
		return p.fail(at, "the kid has more than %d bytes", maxKeyName)
	}
	public, err := k.public()
	if err != nil {
		return p.fail(at, "key with kid %.100q: %w", k.Kid, err)
	}
	if public == nil { // RFC 7517, section 5: of a kind that is not known
		return nil
	}
	return p.add(at, k.Kid, public, k.Alg)
}

// public gives the key, nil if its kind is not known.
func (k *jwk) public() (crypto.PublicKey, error) {
	field := func(name, value string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(value)
		if err != nil || len(b) == 0 {
			return nil
		}
		return b
	}
	switch {
	case k.Kty == "RSA":
		n, e := field("n", k.N), field("e", k.E)
		if n == nil || e == nil || len(e) > 4 || len(n) > maxRSA/8+1 {
			return nil, errors.New("want n and e in base64url")
		}
		exponent := new(big.Int).SetBytes(e).Int64()
		if exponent > 1<<31-1 {
			return nil, errors.New("the exponent e is too large")
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(exponent)}, nil
	case k.Kty == "EC":
		curve := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[k.Crv]
		if curve == nil {
			return nil, nil
		}
		x, y := field("x", k.X), field("y", k.Y)
		if size := (curve.Params().BitSize + 7) / 8; len(x) != size || len(y) != size {
			return nil, fmt.Errorf("want x and y of %d bytes in base64url", size)
		}
		public, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
		if err != nil {
			return nil, errors.New("x and y are no point of the curve")
		}
		return public, nil
	case k.Kty == "OKP" && k.Crv == "Ed25519":
		x := field("x", k.X)
		if len(x) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("want x of %d bytes in base64url", ed25519.PublicKeySize)
		}
		return ed25519.PublicKey(x), nil
	}
	return nil, nil
}

// candidates are the keys that a token with this header may be signed with.
func (k *Keys) candidates(id, alg string) (found []*key) {
	for i := range k.keys {
		key := &k.keys[i]
		if slices.Contains(key.algs, alg) && (id == "" || key.id == "" || key.id == id) {
			found = append(found, key)
		}
	}
	return found
}
