package passwd

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// Bounds of a file.
const (
	maxFile = 64 << 20 // bytes
	maxUser = math.MaxUint16
)

// File is the content of a password file. It doesn't change, and is safe for concurrent
// use.
type File struct {
	users  map[string]*entry
	order  []*entry // as in the file
	seed   maphash.Seed
	secret [32]byte // of this process, for entry.proven
}

// entry is a user's line.
type entry struct {
	user string
	hash hash
	text string // of the hash, as hash.String writes it
	// proven is the keyed hash of a password that has matched, with the File's secret as
	// its key; nil: none has yet.
	proven atomic.Pointer[[sha256.Size]byte]
}

// Load reads a password file. It refuses one that other users of the machine can read
// or change. Errors name the file, and the line where there is one.
func Load(path string) (*File, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := checkMode(f); err != nil {
		return nil, err
	}
	return Parse(path, f)
}

// open opens a regular file: opening a pipe would wait for its writer.
func open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the password file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: want a password file, and this is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the password file: %w", err)
	}
	return f, nil
}

func checkMode(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("cannot read the password file: %w", err)
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		return fmt.Errorf("%s: users other than its owner have access to this file (mode %04o), which has the hashes of passwords: run chmod 600 %s", f.Name(), mode, f.Name())
	}
	return nil
}

// Parse reads the content of a password file. name is for errors.
func Parse(name string, r io.Reader) (*File, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: cannot read the password file: %w", name, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: a password file has at most %d MiB", name, maxFile>>20)
	}
	f := &File{users: make(map[string]*entry), seed: maphash.MakeSeed()}
	_, _ = rand.Read(f.secret[:])
	lines := make(map[string]int)
	for n := 1; len(data) > 0; n++ {
		var line []byte
		line, data, _ = bytes.Cut(data, []byte("\n"))
		user, text, err := cutLine(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if user == "" {
			continue
		}
		if first, twice := lines[user]; twice {
			return nil, fmt.Errorf("%s:%d: user %.100q is in line %d already: delete one of the two lines", name, n, user, first)
		}
		e := &entry{user: user}
		if e.hash, err = parseHash(text); err != nil {
			return nil, fmt.Errorf("%s:%d: user %.100q: %w", name, n, user, err)
		}
		e.text = e.hash.String()
		lines[user], f.users[user] = n, e
		f.order = append(f.order, e)
	}
	return f, nil
}

// cutLine splits a line. The user is empty if the line has no entry.
func cutLine(line []byte) (user, hash string, err error) {
	text := strings.TrimRight(string(line), " \t\r")
	if text == "" || text[0] == '#' {
		return "", "", nil
	}
	user, hash, found := strings.Cut(text, ":")
	if !found {
		return "", "", errors.New("want USER:HASH, as holdfast passwd and mosquitto_passwd write it; there is no colon")
	}
	user = strings.Trim(user, " \t") // as Mosquitto does
	return user, strings.Trim(hash, " \t"), CheckUser(user)
}

// CheckUser says what is wrong with a user name, if anything.
func CheckUser(user string) error {
	switch {
	case user == "":
		return errors.New("the user name is empty")
	case len(user) > maxUser:
		return fmt.Errorf("the user name has %d bytes; %d is the maximum", len(user), maxUser)
	case !utf8.ValidString(user):
		return errors.New("the user name is not valid UTF-8, so no client can send it")
	case strings.ContainsFunc(user, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == ':' }):
		return fmt.Errorf("the user name %.100q has a colon or a control character in it", user)
	case user != strings.Trim(user, " \t") || user[0] == '#':
		return fmt.Errorf("the user name %.100q begins or ends with a space, or begins with #", user)
	}
	return nil
}

// Len is how many users there are.
func (f *File) Len() int { return len(f.order) }

// Entry is what the file has for a user, to be compared with what another one has: it
// changes with the password. It is empty if there is no such user. It is as secret as the
// file.
func (f *File) Entry(user string) string {
	if e := f.users[user]; e != nil {
		return e.text
	}
	return ""
}

// Proven says whether the password is the one that Verify found right before. It costs a
// keyed hash, so that a client that connects again doesn't cost the expensive one.
//
// That is safe: it says true for the right password only; for any other, and for users
// that don't exist, Verify must do its work, so neither answers nor their times tell more
// than without it. What is kept in memory is no password, and is of no use to readers of
// anything but this process's memory, which passwords pass through as well. An entry that
// is changed begins without.
func (f *File) Proven(user string, password []byte) bool {
	e := f.users[user]
	if e == nil {
		e = &entry{}
	}
	sum := f.keyed(user, password)
	proven := e.proven.Load()
	return proven != nil && hmac.Equal(proven[:], sum[:])
}

// Verify says whether the password is the user's. It takes as long for a user that
// doesn't exist as for those that do: if they are hashed at different costs, at the cost
// of one of them, the same each time.
func (f *File) Verify(user string, password []byte) bool {
	e := f.users[user]
	if e == nil {
		f.dummy(user).matches(password)
		return false
	}
	if !e.hash.matches(password) {
		return false
	}
	sum := f.keyed(user, password)
	e.proven.Store(&sum)
	return true
}

// dummy is the hash that the password of an unknown user is compared with.
func (f *File) dummy(user string) *hash {
	h := hash{iterations: DefaultIterations, salt: make([]byte, newSaltLen), key: make([]byte, keyLen)}
	if len(f.order) > 0 {
		like := f.order[maphash.String(f.seed, user)%uint64(len(f.order))].hash
		h.iterations, h.salt = like.iterations, like.salt
	}
	return &h
}

func (f *File) keyed(user string, password []byte) (sum [sha256.Size]byte) {
	m := hmac.New(sha256.New, f.secret[:])
	m.Write([]byte(user))
	m.Write([]byte{0}) // which is in no user name
	m.Write(password)
	m.Sum(sum[:0])
	return sum
}

// adopt keeps what was proven with the file that this one replaces.
func (f *File) adopt(old *File) {
	f.secret = old.secret
	for user, e := range f.users {
		if old.Entry(user) == e.text {
			e.proven.Store(old.users[user].proven.Load())
		}
	}
}

// Reload reads the file again in place of an earlier content.
func Reload(path string, old *File) (*File, error) {
	f, err := Load(path)
	if err == nil && old != nil {
		f.adopt(old)
	}
	return f, err
}
