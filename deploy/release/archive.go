package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"
)

// file is one of an archive or a package.
type file struct {
	from string
	to   string // with slashes
	mode fs.FileMode
}

// archive writes NAME.tar.gz, or NAME.zip, with the files in a directory of its name.
func archive(name string, zipped bool, date time.Time, files []file) (err error) {
	ending, open := ".tar.gz", newTar
	if zipped {
		ending, open = ".zip", newZip
	}
	f, err := os.Create(name + ending)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	add, end := open(f, date)
	for _, one := range files {
		content, err := os.ReadFile(one.from)
		if err != nil {
			return err
		}
		if err := add(path.Join(filepath.Base(name), one.to), one.mode, content); err != nil {
			return err
		}
	}
	return end()
}

type adder func(name string, mode fs.FileMode, content []byte) error

func newTar(w io.Writer, date time.Time) (add adder, end func() error) {
	compressed := gzip.NewWriter(w)
	t := tar.NewWriter(compressed)
	add = func(name string, mode fs.FileMode, content []byte) error {
		h := tar.Header{Name: name, Mode: int64(mode), Size: int64(len(content)), ModTime: date, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
		_, err := t.Write(content)
		return err
	}
	return add, func() error { return errors.Join(t.Close(), compressed.Close()) }
}

func newZip(w io.Writer, date time.Time) (add adder, end func() error) {
	z := zip.NewWriter(w)
	add = func(name string, mode fs.FileMode, content []byte) error {
		h := zip.FileHeader{Name: name, Method: zip.Deflate, Modified: date}
		h.SetMode(mode)
		f, err := z.CreateHeader(&h)
		if err != nil {
			return err
		}
		_, err = f.Write(content)
		return err
	}
	return add, z.Close
}
