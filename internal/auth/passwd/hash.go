package passwd

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	// DefaultIterations is how often a new entry's password is hashed: about 100 ms of a
	// processor's time, OWASP's recommendation for PBKDF2 with HMAC-SHA-512.
	DefaultIterations = 210_000
	// MinIterations is the least for a new entry; files may have entries with fewer.
	MinIterations = 1_000
	// MaxIterations bounds the time of one check: about a second.
	MaxIterations = 2_000_000

	keyLen     = sha512.Size
	newSaltLen = 12 // what Mosquitto before 2.1 takes; it refuses any other length
	maxSaltLen = 128
)

// hash is what a password file has in place of a password.
type hash struct {
	iterations int // of PBKDF2; 0: one SHA-512
	salt, key  []byte
}

// newHash makes the hash of a new entry.
func newHash(password []byte, iterations int) (hash, error) {
	h := hash{iterations: iterations, salt: make([]byte, newSaltLen)}
	_, _ = rand.Read(h.salt) // it never fails
	var err error
	h.key, err = h.derive(password)
	return h, err
}

// derive computes the key of a password. It takes the same time whatever the password.
func (h *hash) derive(password []byte) ([]byte, error) {
	if h.iterations == 0 {
		s := sha512.New()
		s.Write(password)
		s.Write(h.salt)
		return s.Sum(nil), nil
	}
	return pbkdf2.Key(sha512.New, string(password), h.salt, h.iterations, keyLen)
}

// matches says whether the hash is that of the password. A password that ends in a zero
// byte matches none: to PBKDF2 it is the same as without that byte.
func (h *hash) matches(password []byte) bool {
	key, err := h.derive(password)
	return err == nil && !endsInZero(password) && subtle.ConstantTimeCompare(key, h.key) == 1
}

func endsInZero(password []byte) bool {
	return len(password) > 0 && password[len(password)-1] == 0
}

func (h *hash) String() string {
	salt, key := base64.StdEncoding.EncodeToString(h.salt), base64.StdEncoding.EncodeToString(h.key)
	if h.iterations == 0 {
		return "$6$" + salt + "$" + key
	}
	return fmt.Sprintf("$7$%d$%s$%s", h.iterations, salt, key)
}

var errCutOff = errors.New("the hash is cut off; want $7$ITERATIONS$SALT$KEY or $6$SALT$KEY")

// parseHash reads what String writes.
func parseHash(s string) (h hash, err error) {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(s, "$"), "$")
	switch {
	case !strings.HasPrefix(s, "$"), !strings.Contains(s[1:], "$"): // and the error must not have it
		return h, errors.New("the password is not hashed; convert the file with mosquitto_passwd -U, or set the password with holdfast passwd")
	case kind == "6":
	case kind == "7":
		var count string
		var whole bool
		if count, rest, whole = strings.Cut(rest, "$"); !whole {
			return h, errCutOff
		}
		if h.iterations, err = strconv.Atoi(count); err != nil || h.iterations < 1 || count[0] == '+' {
			return h, fmt.Errorf("the number of iterations %.20q is not a whole number above 0", count)
		}
		if h.iterations > MaxIterations {
			return h, fmt.Errorf("%d iterations would take the server too long for each login; %d is the maximum", h.iterations, MaxIterations)
		}
	default:
		return h, fmt.Errorf("unknown kind of hash $%.20s$; want $7$ITERATIONS$SALT$KEY or $6$SALT$KEY, as holdfast passwd and mosquitto_passwd write them", kind)
	}
	salt, key, found := strings.Cut(rest, "$")
	if !found {
		return h, errCutOff
	}
	if h.salt, err = base64.StdEncoding.DecodeString(salt); err != nil || len(h.salt) == 0 || len(h.salt) > maxSaltLen {
		return h, fmt.Errorf("the salt is not base64 of 1 to %d bytes", maxSaltLen)
	}
	if h.key, err = base64.StdEncoding.DecodeString(key); err != nil || len(h.key) != keyLen {
		return h, fmt.Errorf("the key is not base64 of %d bytes", keyLen)
	}
	return h, nil
}
