// Package goldenfile compares what a program writes with files that have what it has always
// written, for tests of formats.
package goldenfile

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Renew is the variable of the environment that has tests write the files anew.
const Renew = "HOLDFAST_RENEW_FORMATS"

const advice = `Data directories, backups and nodes of other versions have the bytes in the file. If the change is meant:
 - can the program of before not read the new form? Then give it a version of its own, raise the format level (internal/replica/members/level.go says how), write the former form as long as the cluster's level is lower, keep this file as one that is read, and add one with the new form;
 - can it? Then write the file anew with ` + Renew + `=1 in the environment of this test.`

// Read gives what the file testdata/formats/NAME.hex has.
func Read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(path(name))
	if err != nil {
		t.Fatalf("%v: a new form needs a file; %s=1 in the environment of this test writes it", err, Renew)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatalf("%s: %v", path(name), err)
	}
	return b
}

// Check fails the test if the program writes other bytes than the file has, and gives those of
// the file, for the test to read.
func Check(t *testing.T, name string, written []byte) []byte {
	t.Helper()
	if os.Getenv(Renew) != "" {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path(name)), 0o755), os.WriteFile(path(name), lines(written), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want := Read(t, name)
	if !bytes.Equal(written, want) {
		t.Errorf("%s: the program writes\n%s\nand the file has\n%s\n%s", name, lines(written), lines(want), advice)
	}
	return want
}

// Differs is how a test says that the program reads something else than what it once wrote.
func Differs(t *testing.T, name string, got, want any) {
	t.Helper()
	t.Errorf("%s: the program reads\n%+v\nof the file, and\n%+v\nwas written. %s", name, got, want, advice)
}

// Names are those of all files, by their order.
func Names(t *testing.T) (names []string) {
	t.Helper()
	all, err := fs.Glob(os.DirFS(filepath.Join("testdata", "formats")), "*.hex")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		names = append(names, strings.TrimSuffix(name, ".hex"))
	}
	return names
}

func path(name string) string {
	return filepath.Join("testdata", "formats", strings.ReplaceAll(name, " ", "-")+".hex")
}

const bytesOfLine = 32

// lines is b in hexadecimal digits.
func lines(b []byte) []byte {
	var text bytes.Buffer
	for len(b) > bytesOfLine {
		text.WriteString(hex.EncodeToString(b[:bytesOfLine]) + "\n")
		b = b[bytesOfLine:]
	}
	text.WriteString(hex.EncodeToString(b) + "\n")
	return text.Bytes()
}
