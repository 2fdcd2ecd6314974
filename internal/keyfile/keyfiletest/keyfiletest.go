// Package keyfiletest reads the keys of package keyfile's testdata, for tests.
package keyfiletest

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"testing"
)

// Parse parses the private key of a PEM file that is not encrypted.
func Parse(tb testing.TB, file []byte) *ecdsa.PrivateKey {
	tb.Helper()
	block, _ := pem.Decode(file)
	if block == nil {
		tb.Fatalf("no PEM: %q", file)
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		tb.Fatal(err)
	}
	return key.(*ecdsa.PrivateKey)
}
