// Command renew compresses files for package zipped, by gzip: go generate runs it.
//
//	renew SOURCE TARGET
//
// SOURCE and TARGET are two directories, or a file and its gzip. In TARGET each file has the
// ending .gz; those that have no source are removed. A file that is the gzip of its source stays
// as it is, whichever version of Go has written it.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/zipped"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: renew SOURCE TARGET")
		os.Exit(2)
	}
	if err := renew(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "renew:", err)
		os.Exit(1)
	}
}

func renew(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return compress(source, target)
	}
	err = filepath.WalkDir(target, func(path string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) || err == nil && entry.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		below, err := filepath.Rel(target, path)
		if err != nil {
			return err
		}
		if _, err = os.Stat(filepath.Join(source, strings.TrimSuffix(below, ".gz"))); os.IsNotExist(err) {
			return os.Remove(path)
		}
		return err
	})
	if err != nil {
		return err
	}
	return filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		below, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		return compress(path, filepath.Join(target, below)+".gz")
	})
}

// compress makes target the gzip of source.
func compress(source, target string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	if there, err := os.ReadFile(target); err == nil {
		if plain, err := zipped.Plain(there); err == nil && bytes.Equal(plain, content) {
			return nil
		}
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(content); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.WriteFile(target, out.Bytes(), 0o644)
}
