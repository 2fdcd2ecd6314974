// Package keyfile decrypts private keys that are encrypted with a password, and encrypts them.
//
// There are two forms: PKCS #8 with PBES2 (RFC 8018), which openssl has written for many
// years, and the older one of RFC 1423, with the name of the cipher in the PEM header.
// The standard library decrypts the latter only.
package keyfile

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
)

var (
	// ErrNeedsPassword means that the key is encrypted, and no password was given.
	ErrNeedsPassword = errors.New("the private key is encrypted")
	// ErrWrongPassword means that the key is encrypted with another password.
	ErrWrongPassword = errors.New("the password does not decrypt the private key")
)

// Decrypt gives the private key of a PEM file without encryption, the whole file if
// it has none. The errors are ErrNeedsPassword, ErrWrongPassword, and those that
// say what is wrong with the file.
func Decrypt(file []byte, password string) ([]byte, error) {
	for rest := file; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return file, nil
		}
		//lint:ignore SA1019 Keys of this form are old, and so is their encryption; they exist.
		older := x509.IsEncryptedPEMBlock(block)
		switch {
		case block.Type != "ENCRYPTED PRIVATE KEY" && !older:
			continue
		case password == "":
			return nil, ErrNeedsPassword
		}
		var der []byte
		var err error
		kind := "PRIVATE KEY"
		if older {
			//lint:ignore SA1019 As above.
			der, err = x509.DecryptPEMBlock(block, []byte(password))
			if errors.Is(err, x509.IncorrectPasswordError) {
				err = ErrWrongPassword
			}
			kind = block.Type
		} else {
			der, err = decryptPKCS8(block.Bytes, []byte(password))
		}
		if err != nil {
			return nil, err
		}
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), nil
	}
}

// The structures of RFC 5958, section 3, and of RFC 8018, appendix A.
type (
	encryptedPrivateKeyInfo struct {
		Algorithm pkix.AlgorithmIdentifier
		Data      []byte
	}
	pbes2Parameters struct {
		KeyDerivation pkix.AlgorithmIdentifier
		Encryption    pkix.AlgorithmIdentifier
	}
	pbkdf2Parameters struct {
		Salt       []byte
		Iterations int
		KeyLength  int                      `asn1:"optional"`
		PRF        pkix.AlgorithmIdentifier `asn1:"optional"`
	}
)

// maxIterations bounds the work that a file can ask for: some seconds.
const maxIterations = 10_000_000

var oidPBES2, oidPBKDF2 = "1.2.840.113549.1.5.13", "1.2.840.113549.1.5.12"

// keyCiphers are the ciphers, all in CBC mode, with the length of their keys.
var keyCiphers = map[string]struct {
	newBlock func(key []byte) (cipher.Block, error)
	keySize  int
}{
	"2.16.840.1.101.3.4.1.2":  {aes.NewCipher, 16},
	"2.16.840.1.101.3.4.1.22": {aes.NewCipher, 24},
	"2.16.840.1.101.3.4.1.42": {aes.NewCipher, 32},
	"1.2.840.113549.3.7":      {des.NewTripleDESCipher, 24},
}

// keyPRFs are the pseudo-random functions of PBKDF2, each HMAC with a hash; the first
// is the one of a file that names none.
var keyPRFs = map[string]func() hash.Hash{
	"":                    sha1.New,
	"1.2.840.113549.2.7":  sha1.New,
	"1.2.840.113549.2.9":  sha256.New,
	"1.2.840.113549.2.10": sha512.New384,
	"1.2.840.113549.2.11": sha512.New,
	"1.2.840.113549.2.8":  sha256.New224,
	"1.2.840.113549.2.13": sha512.New512_256,
	"1.2.840.113549.2.12": sha512.New512_224,
}

// errOtherEncryption is about a file that only other programs can decrypt.
func errOtherEncryption(what string) error {
	return fmt.Errorf("it is encrypted with %s, which is not supported; encrypt it anew with: openssl pkcs8 -topk8 -v2 aes-256-cbc -in KEYFILE -out NEWKEYFILE", what)
}

var errMalformedKey = errors.New("the encrypted private key is malformed")

// decryptPKCS8 gives the PKCS #8 structure inside of an encrypted one.
func decryptPKCS8(der, password []byte) ([]byte, error) {
	var info encryptedPrivateKeyInfo
	if rest, err := asn1.Unmarshal(der, &info); err != nil || len(rest) > 0 {
		return nil, errMalformedKey
	}
	if scheme := info.Algorithm.Algorithm.String(); scheme != oidPBES2 {
		return nil, errOtherEncryption("the scheme " + scheme)
	}
	var scheme pbes2Parameters
	if rest, err := asn1.Unmarshal(info.Algorithm.Parameters.FullBytes, &scheme); err != nil || len(rest) > 0 {
		return nil, errMalformedKey
	}
	c, ok := keyCiphers[scheme.Encryption.Algorithm.String()]
	if !ok {
		return nil, errOtherEncryption("the cipher " + scheme.Encryption.Algorithm.String())
	}
	key, err := deriveKey(&scheme.KeyDerivation, password, c.keySize)
	if err != nil {
		return nil, err
	}
	block, err := c.newBlock(key)
	if err != nil {
		return nil, err
	}
	var iv []byte
	if rest, err := asn1.Unmarshal(scheme.Encryption.Parameters.FullBytes, &iv); err != nil || len(rest) > 0 || len(iv) != block.BlockSize() {
		return nil, errMalformedKey
	}
	if len(info.Data) == 0 || len(info.Data)%block.BlockSize() != 0 {
		return nil, errMalformedKey
	}
	plain := make([]byte, len(info.Data))
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(plain, info.Data)
	return unpad(plain, block.BlockSize())
}

func deriveKey(derivation *pkix.AlgorithmIdentifier, password []byte, size int) ([]byte, error) {
	if kind := derivation.Algorithm.String(); kind != oidPBKDF2 {
		return nil, errOtherEncryption("the key derivation " + kind)
	}
	var p pbkdf2Parameters
	if rest, err := asn1.Unmarshal(derivation.Parameters.FullBytes, &p); err != nil || len(rest) > 0 || p.Iterations < 1 || p.KeyLength != 0 && p.KeyLength != size {
		return nil, errMalformedKey
	}
	if p.Iterations > maxIterations {
		return nil, errOtherEncryption(fmt.Sprintf("%d iterations", p.Iterations))
	}
	name := ""
	if len(p.PRF.Algorithm) > 0 {
		name = p.PRF.Algorithm.String()
	}
	newHash, ok := keyPRFs[name]
	if !ok {
		return nil, errOtherEncryption("the pseudo-random function " + name)
	}
	return pbkdf2.Key(newHash, string(password), p.Salt, p.Iterations, size)
}

// unpad takes the padding off. If there is none, or no structure under it, the password
// was another.
func unpad(plain []byte, blockSize int) ([]byte, error) {
	n := int(plain[len(plain)-1])
	if n < 1 || n > blockSize || !bytes.Equal(plain[len(plain)-n:], bytes.Repeat([]byte{byte(n)}, n)) {
		return nil, ErrWrongPassword
	}
	der := plain[:len(plain)-n]
	if _, err := x509.ParsePKCS8PrivateKey(der); err != nil {
		var structure asn1.RawValue
		if rest, err := asn1.Unmarshal(der, &structure); err != nil || len(rest) > 0 {
			return nil, ErrWrongPassword
		}
	}
	return der, nil
}

// encryptIterations is what OWASP recommends for PBKDF2 with HMAC-SHA256.
const encryptIterations = 600_000

// Encrypt makes a PEM file of a private key in PKCS #8 form, encrypted with AES-256 by a
// key that PBKDF2 derives from the password. Decrypt, and any OpenSSL, read it.
func Encrypt(der []byte, password string) ([]byte, error) {
	salt, iv := make([]byte, 16), make([]byte, aes.BlockSize)
	_, _ = rand.Read(salt) // never fails
	_, _ = rand.Read(iv)
	key, err := pbkdf2.Key(sha256.New, password, salt, encryptIterations, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	padding := aes.BlockSize - len(der)%aes.BlockSize
	data := append(bytes.Clone(der), bytes.Repeat([]byte{byte(padding)}, padding)...)
	cipher.NewCBCEncrypter(block, iv).CryptBlocks(data, data)

	var derivation, encryption pkix.AlgorithmIdentifier
	derivation.Algorithm = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 12} // PBKDF2
	prf := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 2, 9}, Parameters: asn1.NullRawValue}
	if derivation.Parameters.FullBytes, err = asn1.Marshal(pbkdf2Parameters{Salt: salt, Iterations: encryptIterations, PRF: prf}); err != nil {
		return nil, err
	}
	encryption.Algorithm = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 42} // AES-256-CBC
	if encryption.Parameters.FullBytes, err = asn1.Marshal(iv); err != nil {
		return nil, err
	}
	info := encryptedPrivateKeyInfo{Data: data}
	info.Algorithm.Algorithm = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 13} // PBES2
	if info.Algorithm.Parameters.FullBytes, err = asn1.Marshal(pbes2Parameters{derivation, encryption}); err != nil {
		return nil, err
	}
	file, err := asn1.Marshal(info)
	return pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: file}), err
}
