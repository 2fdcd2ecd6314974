package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/sassoftware/go-rpmutils"
)

// maxProgramBytes bounds the program of a release, on linux/amd64. The console is half a MiB of it.
const maxProgramBytes = 24 << 20

// TestRelease makes two releases for this machine's processor, looks at their files, and
// runs what can be run of them.
func TestRelease(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || !slices.ContainsFunc(platforms, func(p platform) bool { return p.String() == "linux/"+runtime.GOARCH }) {
		t.Skip("a release is installed and started here, and there is none for this system and processor")
	}
	first, second := build(t, "v0.1.0-rc.1"), build(t, "v0.1.0")
	name := "holdfast_v0.1.0-rc.1_linux_" + runtime.GOARCH
	t.Run("archive", func(t *testing.T) { t.Parallel(); testArchive(t, filepath.Join(first, name)) })
	t.Run("checksums", func(t *testing.T) { t.Parallel(); testChecksums(t, first) })
	t.Run("modules", func(t *testing.T) { t.Parallel(); testModules(t, filepath.Join(first, name+".cdx.json")) })
	t.Run("rpm", func(t *testing.T) { t.Parallel(); testRPM(t, only(t, first, "*.rpm")) })
	t.Run("deb", func(t *testing.T) { t.Parallel(); testDeb(t, only(t, first, "*.deb"), only(t, second, "*.deb")) })
	t.Run("commands of the page", func(t *testing.T) { t.Parallel(); testCommandsOfThePage(t, second) })
	t.Run("image", func(t *testing.T) {
		t.Parallel()
		program := filepath.Join(t.TempDir(), "holdfast")
		if err := os.WriteFile(program, unpacked(t, filepath.Join(first, name+".tar.gz"))[name+"/holdfast"], 0o755); err != nil {
			t.Fatal(err)
		}
		testImage(t, program)
	})
}

// build makes a release of the checkout for this machine's processor.
func build(t *testing.T, version string) (dir string) {
	t.Helper()
	git := exec.Command("git", "rev-parse", "HEAD")
	git.Dir = checkout
	dir = filepath.Join(t.TempDir(), version)
	r := release{version: version, out: dir, source: checkout}
	if out, err := git.CombinedOutput(); err != nil {
		t.Logf("not a checkout with Git, so the program names no commit: %v\n%s", err, out)
		r.date = r.date.AddDate(2000, 0, 0)
		r.noVCS = true
	}
	if err := r.run(t.Context(), "linux/"+runtime.GOARCH); err != nil {
		t.Fatal(err)
	}
	return dir
}

func only(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %q, %v; want one", pattern, dir, found, err)
	}
	return found[0]
}

// unpacked are the files of an archive.
func unpacked(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func testArchive(t *testing.T, path string) {
	files := unpacked(t, path+".tar.gz")
	for _, want := range []string{
		"holdfast", "LICENSE", "THIRD_PARTY_LICENSES", "README.md", "CHANGELOG.md", "holdfast.service", "man/holdfast.1.gz", "man/holdfast-serve.1.gz", "man/holdfast-session-kick.1.gz",
		"completions/holdfast.bash", "completions/_holdfast", "completions/holdfast.fish", "completions/holdfast.ps1",
	} {
		if len(files[filepath.Base(path)+"/"+want]) == 0 {
			t.Errorf("the archive has no %s", want)
		}
	}
	program := files[filepath.Base(path)+"/holdfast"]
	if runtime.GOARCH == "amd64" && len(program) > maxProgramBytes {
		t.Errorf("the program has %d bytes, want at most %d", len(program), maxProgramBytes)
	}
	if wd, err := os.Getwd(); err != nil || bytes.Contains(program, []byte(wd[:strings.Index(wd, "/deploy")])) {
		t.Error("the program has paths of this machine in it")
	}
	for name, content := range files {
		if !strings.HasSuffix(name, ".1.gz") {
			continue
		}
		z, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(z)
		if err != nil || !bytes.Contains(page, []byte("\n.SH SYNOPSIS")) || !bytes.Contains(page, []byte("Holdfast v0.1.0-rc.1")) {
			t.Errorf("%s: %v, %.200s", name, err, page)
		}
	}
}

func testChecksums(t *testing.T, dir string) {
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "SHA256SUMS" {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		if line := hex.EncodeToString(sum[:]) + "  " + e.Name() + "\n"; !strings.Contains(string(sums), line) {
			t.Errorf("SHA256SUMS has no line %q", line)
		}
	}
	if len(entries) != 5 { // archive, deb, rpm, modules, checksums
		t.Errorf("the release has %d files", len(entries))
	}
}

func testModules(t *testing.T, path string) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b cdx.BOM
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&b); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range *b.Components {
		names = append(names, c.Name)
		if c.Version == "" || c.PackageURL == "" {
			t.Errorf("%+v", c)
		}
	}
	for _, want := range []string{"std", "github.com/cockroachdb/pebble/v2", "github.com/spf13/cobra"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no %s among %q", want, names)
		}
	}
	for _, not := range []string{"github.com/goreleaser/nfpm/v2", "pgregory.net/rapid"} {
		if slices.Contains(names, not) {
			t.Errorf("%s is no part of the program", not)
		}
	}
	if got := b.Metadata.Component; got.Name != "holdfast" || got.Version != "v0.1.0-rc.1" || b.SpecVersion != cdx.SpecVersion1_6 {
		t.Errorf("it is of %+v, version %v", got, b.SpecVersion)
	}
}

// There is no rpm here that could install it: another reader finds in it what belongs there.
func testRPM(t *testing.T, path string) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := rpmutils.ReadRpm(f)
	if err != nil {
		t.Fatal(err)
	}
	id, err := p.Header.GetNEVRA()
	if err != nil || id.Name != "holdfast" || id.Version != "0.1.0~rc.1" {
		t.Errorf("it is %+v, %v", id, err)
	}
	files, err := p.Header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]int{}
	for _, one := range files {
		flags[one.Name()] = one.Flags()
		if one.UserName() != "root" {
			t.Errorf("%s belongs to %s", one.Name(), one.UserName())
		}
	}
	for _, want := range []string{"/usr/bin/holdfast", "/usr/lib/systemd/system/holdfast.service", "/usr/share/man/man1/holdfast.1.gz", "/usr/share/bash-completion/completions/holdfast"} {
		if _, has := flags[want]; !has {
			t.Errorf("it has no %s", want)
		}
	}
	const config, noReplace = 1, 16
	if flags["/etc/holdfast/holdfast.yaml"] != config|noReplace {
		t.Errorf("its configuration has the flags %d, want those of one that an upgrade does not replace", flags["/etc/holdfast/holdfast.yaml"])
	}
	scripts := 0
	for _, tag := range []int{rpmutils.POSTIN, rpmutils.PREUN, rpmutils.POSTUN} {
		if text, err := p.Header.GetString(tag); err == nil && strings.Contains(text, "/run/systemd/system") {
			scripts++
		}
	}
	if scripts != 3 {
		t.Errorf("it has %d of its three scripts", scripts)
	}
}

// testCommandsOfThePage runs the commands of docs/installing.md in a directory with a
// release. What is not in a block of kind "console" needs Docker, systemd or Kubernetes.
func testCommandsOfThePage(t *testing.T, dir string) {
	if _, err := exec.LookPath("sha256sum"); err != nil {
		t.Skip("sha256sum, with which the page verifies a release, is not installed (Debian: coreutils)")
	}
	page, err := os.ReadFile(filepath.Join(checkout, "docs", "installing.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "\n```console\n")
	block, _, _ := strings.Cut(after, "```\n")
	block = strings.ReplaceAll(block, "amd64", runtime.GOARCH)
	commands := 0
	for part := range strings.SplitSeq("\n"+block, "\n$ ") {
		command, want, _ := strings.Cut(part, "\n")
		if command == "" {
			continue
		}
		commands++
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want)), "…", ".*")
		if err != nil || !regexp.MustCompile("^"+pattern+"$").MatchString(strings.TrimSpace(string(out))) {
			t.Errorf("%s: %v\nprinted %q\nwant    %q", command, err, out, want)
		}
	}
	if commands < 4 {
		t.Errorf("the page has %d commands", commands)
	}
}

func TestReleaseIsRefused(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ version, out, only, want string }{
		{"1.2.3", "x", "", "want a version such as v1.2.3"},
		{"v1.2", "x", "", "want a version such as v1.2.3"},
		{"v1.2.3", "", "", "want a directory"},
		{"v1.2.3", full, "", "not empty"},
		{"v1.2.3", filepath.Join(full, "new"), "plan9/amd64", "the platforms of a release are [linux/amd64 linux/arm64 linux/armv7 darwin/amd64"},
	} {
		r := release{version: test.version, out: test.out, source: checkout}
		if err := r.run(t.Context(), test.only); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}
