package passwd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// ErrNoUser says that the user to delete is not in the file.
var ErrNoUser = errors.New("there is no such user in the file")

// MaxPassword is the longest password that MQTT can carry, in bytes.
const MaxPassword = 65535

// Set gives a user a new password. It makes the file if there is none, and keeps its
// other lines. A reader sees the old file or the new one.
func Set(path, user string, password []byte, iterations int) error {
	if err := CheckUser(user); err != nil {
		return err
	}
	switch {
	case len(password) == 0:
		return errors.New("the password is empty")
	case len(password) > MaxPassword:
		return fmt.Errorf("the password has %d bytes; MQTT carries at most %d", len(password), MaxPassword)
	case endsInZero(password):
		return errors.New("the password ends in a zero byte, which PBKDF2 cannot tell from its absence")
	case iterations < MinIterations || iterations > MaxIterations:
		return fmt.Errorf("%d iterations: want %d to %d", iterations, MinIterations, MaxIterations)
	}
	h, err := newHash(password, iterations)
	if err != nil {
		return err
	}
	return edit(path, true, func(lines []string) ([]string, error) {
		line := user + ":" + h.String()
		for i := range lines {
			if of, _, _ := cutLine([]byte(lines[i])); of == user {
				lines[i] = line
				return lines, nil
			}
		}
		return append(lines, line), nil
	})
}

// Delete takes a user out of the file.
func Delete(path, user string) error {
	return edit(path, false, func(lines []string) ([]string, error) {
		for i := range lines {
			if of, _, _ := cutLine([]byte(lines[i])); of == user && user != "" {
				return append(lines[:i], lines[i+1:]...), nil
			}
		}
		return nil, fmt.Errorf("%s: %w: %.100q", path, ErrNoUser, user)
	})
}

// edit replaces a file by a changed one. It refuses a file with errors in it: the server
// would not take the new one either.
func edit(path string, create bool, change func(lines []string) ([]string, error)) error {
	target, err := filepath.EvalSymlinks(path)
	if err != nil && create && errors.Is(err, os.ErrNotExist) {
		target = path
	} else if err != nil {
		return fmt.Errorf("cannot read the password file: %w", err)
	}
	data, info, err := readForEdit(target, create)
	if err != nil {
		return err
	}
	if _, err := Parse(path, bytes.NewReader(data)); err != nil {
		return err
	}
	var lines []string
	if len(data) > 0 {
		lines = strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	}
	if lines, err = change(lines); err != nil {
		return err
	}
	var out bytes.Buffer
	for _, l := range lines {
		out.WriteString(l + "\n")
	}
	if err := replace(target, out.Bytes(), info); err != nil {
		return fmt.Errorf("cannot write the password file: %w", err)
	}
	return nil
}

// readForEdit gives what the file has, and nil info if there is none.
func readForEdit(path string, create bool) (data []byte, info os.FileInfo, err error) {
	if _, err := os.Stat(path); create && errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	f, err := open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil {
		data, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the password file: %w", err)
	}
	return data, info, nil
}

// replace puts a new file, with access for its owner only, in the place of the old one.
func replace(path string, data []byte, old os.FileInfo) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if old != nil {
		if err := keepOwner(f, old); err != nil {
			return err
		}
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}
