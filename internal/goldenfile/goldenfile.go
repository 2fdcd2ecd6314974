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

// Advice is what a test prints for the developer whose change writes other bytes: which programs and
// data have the former ones, and what the change takes.
type Advice string

// Stored is for bytes that nodes and servers keep.
const Stored = Advice(`Data directories, backups and nodes of other versions have the bytes in the file. If the change is meant:
 - can the program of before not read the new form? Then give it a version of its own, raise the format level (internal/replica/members/level.go says how), write the former form as long as the cluster's level is lower, keep this file as one that is read, and add one with the new form;
 - can it? Then write the file anew with ` + Renew + `=1 in the environment of this test.`)

// Exchanged is for bytes that programs send each other, which may be of two successive releases. raise says how
// a form becomes a new one that the other program knows.
func Exchanged(raise string) Advice {
	return Advice(`Programs of the release before send and read the bytes in the file while a cluster is upgraded. If the change is meant:
 - can the program of before not read the new form, or this one not the former? Then ` + raise + `; keep this file as one that is read, and add one with the new form;
 - can both? Then write the file anew with ` + Renew + `=1 in the environment of this test.`)
}

// Check is Stored.Check.
func Check(t *testing.T, name string, written []byte) []byte {
	t.Helper()
	return Stored.Check(t, name, written)
}

// Differs is Stored.Differs.
func Differs(t *testing.T, name string, got, want any) {
	t.Helper()
	Stored.Differs(t, name, got, want)
}

// Read gives what the file testdata/formats/NAME.hex has.
func Read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(content(t, path(name, inHex)))), ""))
	if err != nil {
		t.Fatalf("%s: %v", path(name, inHex), err)
	}
	return b
}

// Check fails the test if the program writes other bytes than the file has, and gives those of
// the file, for the test to read.
func (a Advice) Check(t *testing.T, name string, written []byte) []byte {
	t.Helper()
	a.compare(t, path(name, inHex), lines(written))
	return Read(t, name)
}

// Text is Check for text, which is in testdata/formats/NAME.txt as it is.
func (a Advice) Text(t *testing.T, name string, written []byte) []byte {
	t.Helper()
	return a.compare(t, path(name, asText), written)
}

// compare compares what a file is to have with what it has, which it gives.
func (a Advice) compare(t *testing.T, file string, written []byte) []byte {
	t.Helper()
	if os.Getenv(Renew) != "" {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, written, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want := content(t, file)
	if !bytes.Equal(written, want) {
		t.Errorf("%s: the program writes\n%s\nand the file has\n%s\n%s", file, written, want, a)
	}
	return want
}

func content(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: a new form needs a file; %s=1 in the environment of this test writes it", err, Renew)
	}
	return b
}

// Differs is how a test says that the program reads something else than what it once wrote.
func (a Advice) Differs(t *testing.T, name string, got, want any) {
	t.Helper()
	t.Errorf("%s: the program reads\n%+v\nof the file, and\n%+v\nwas written. %s", name, got, want, a)
}

// Names are those of all files, by their order.
func Names(t *testing.T) (names []string) {
	t.Helper()
	all, err := fs.Glob(os.DirFS(filepath.Join("testdata", "formats")), "*"+inHex)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		names = append(names, strings.TrimSuffix(name, inHex))
	}
	return names
}

// The files' endings.
const (
	inHex  = ".hex"
	asText = ".txt"
)

func path(name, ending string) string {
	return filepath.Join("testdata", "formats", strings.ReplaceAll(name, " ", "-")+ending)
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
