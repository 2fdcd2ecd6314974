package keyfile

import (
	"bytes"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/keyfile/keyfiletest"
)

// The files of testdata/keys were made with openssl: one key, encrypted in the ways that
// their names say with the password "secret".
func TestEncryptedKeys(t *testing.T) {
	t.Parallel()
	read := func(name string) []byte {
		file, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	want := keyfiletest.Parse(t, read("plain.pem"))
	if got, err := Decrypt(read("plain.pem"), ""); err != nil || !keyfiletest.Parse(t, got).Equal(want) {
		t.Errorf("a key that is not encrypted: %v", err)
	}
	for _, name := range []string{
		"pbes2-aes256-sha256.pem", "pbes2-aes192-sha512.pem", "pbes2-aes128-sha1.pem", "pbes2-des3.pem", "rfc1423-aes256.pem",
	} {
		file := append([]byte("A comment, as openssl writes them.\n"), read(name)...)
		if got, err := Decrypt(file, "secret"); err != nil || !keyfiletest.Parse(t, got).Equal(want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Decrypt(file, "other"); !errors.Is(err, ErrWrongPassword) {
			t.Errorf("%s with another password: %v", name, err)
		}
		if _, err := Decrypt(file, ""); !errors.Is(err, ErrNeedsPassword) {
			t.Errorf("%s without a password: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"pbes2-scrypt.pem":   "the key derivation 1.3.6.1.4.1.11591.4.11",
		"pbes2-camellia.pem": "the cipher 1.2.392.200011.61.1.1.1.4",
		"pbes1-3des.pem":     "the scheme 1.2.840.113549.1.12.1.3",
	} {
		if _, err := Decrypt(read(name), "secret"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "openssl pkcs8 -topk8") {
			t.Errorf("%s: %v; want it to name %s", name, err, want)
		}
	}
}

// A file that is cut off or damaged is malformed, or a wrong password: never a panic.
func TestDamagedEncryptedKeys(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("testdata/pbes2-aes256-sha256.pem")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(file)
	for i := range block.Bytes {
		for _, der := range [][]byte{block.Bytes[:i], append(append(bytes.Clone(block.Bytes[:i]), block.Bytes[i]^1), block.Bytes[i+1:]...)} {
			if i >= 70 && i < 80 && len(der) == len(block.Bytes) {
				continue // the count of iterations may become large
			}
			_, _ = decryptPKCS8(der, []byte("secret"))
		}
	}
	if _, err := decryptPKCS8(block.Bytes[:len(block.Bytes)-1], []byte("secret")); !errors.Is(err, errMalformedKey) {
		t.Errorf("cut off: %v", err)
	}
	if _, err := decryptPKCS8(append(bytes.Clone(block.Bytes), 0), []byte("secret")); !errors.Is(err, errMalformedKey) {
		t.Errorf("with a byte too many: %v", err)
	}
}
