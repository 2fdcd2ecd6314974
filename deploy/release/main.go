// Command release builds what a release consists of: the program for each platform in an
// archive with man pages and completions, packages for Debian and RPM, a list of the modules
// in each program (CycloneDX), and checksums.
//
//	go run -C deploy/release . -version v1.2.3 -out /tmp/v1.2.3
//
// The same commit and version give the same bytes with the same version of Go. It is a
// module of its own, so that what only it needs is no dependency of the program.
package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "version of the release, such as v1.2.3 or v1.2.3-rc.1")
	flag.StringVar(&r.out, "out", "", "directory for its files, which must not exist or be empty")
	flag.StringVar(&r.source, "source", "../..", "checkout that it is built of")
	only := flag.String("only", "", "platforms with commas between them, such as linux/amd64,windows/amd64; default: all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := r.run(ctx, *only); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// platform is an operating system and a processor.
type platform struct {
	os, arch string
	arm      string // GOARM
}

// platforms are those of a release.
var platforms = []platform{
	{os: "linux", arch: "amd64"}, {os: "linux", arch: "arm64"}, {os: "linux", arch: "arm", arm: "7"},
	{os: "darwin", arch: "amd64"}, {os: "darwin", arch: "arm64"},
	{os: "windows", arch: "amd64"}, {os: "windows", arch: "arm64"},
	{os: "freebsd", arch: "amd64"}, {os: "freebsd", arch: "arm64"},
}

func (p platform) String() string {
	if p.arm != "" {
		return p.os + "/" + p.arch + "v" + p.arm
	}
	return p.os + "/" + p.arch
}

// chosen are the platforms of the flag -only.
func chosen(only string) (some []platform, err error) {
	if only == "" {
		return platforms, nil
	}
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(platforms, func(p platform) bool { return p.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("-only %s: the platforms of a release are %v", name, platforms)
		}
		some = append(some, platforms[i])
	}
	return some, nil
}

// release is one that is being built.
type release struct {
	version string
	out     string
	source  string
	date    time.Time // of the commit, for all files
	noVCS   bool      // the source is no checkout with Git: SOURCE_DATE_EPOCH has the date
}

// semantic is a version as Go's modules have it.
var semantic = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func (r *release) run(ctx context.Context, only string) error {
	if !semantic.MatchString(r.version) {
		return fmt.Errorf("-version %q: want a version such as v1.2.3 or v1.2.3-rc.1", r.version)
	}
	if r.out == "" {
		return fmt.Errorf("-out: want a directory for the files of the release")
	}
	if present, err := os.ReadDir(r.out); err == nil && len(present) > 0 {
		return fmt.Errorf("-out %s: the directory is not empty", r.out)
	}
	wanted, err := chosen(only)
	if err != nil {
		return err
	}
	if r.date, err = r.commitDate(ctx); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "holdfast-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	shared, err := r.sharedFiles(work)
	if err != nil {
		return err
	}
	for _, p := range wanted {
		if err := r.buildFor(ctx, p, filepath.Join(work, p.os+"_"+p.arch), shared); err != nil {
			return fmt.Errorf("%v: %w", p, err)
		}
	}
	return r.checksums()
}

// buildFor makes the files of one platform.
func (r *release) buildFor(ctx context.Context, p platform, work string, shared []file) error {
	program := filepath.Join(work, "holdfast")
	if p.os == "windows" {
		program += ".exe"
	}
	if err := r.compile(ctx, p, program); err != nil {
		return err
	}
	name := filepath.Join(r.out, strings.Join([]string{"holdfast", r.version, p.os, p.arch + p.arm}, "_"))
	bom, notices, err := r.modules(ctx, program, p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".cdx.json", bom, 0o644); err != nil {
		return err
	}
	licences := filepath.Join(work, "THIRD_PARTY_LICENSES")
	if err := os.WriteFile(licences, notices, 0o644); err != nil {
		return err
	}
	contents := append([]file{{from: program, to: filepath.Base(program), mode: 0o755}, {from: licences, to: filepath.Base(licences), mode: 0o644}}, shared...)
	if p.os == "linux" {
		contents = append(contents, file{from: r.at("deploy/systemd/holdfast.service"), to: "holdfast.service", mode: 0o644})
		if err := r.packages(p, contents); err != nil {
			return err
		}
	}
	return archive(name, p.os == "windows", r.date, contents)
}

// withoutHTTP2 is the build tag of net/http that leaves HTTP/2 out, half a MB. The server speaks
// HTTP/1.1, for WebSocket, and so do its questions to other servers.
const withoutHTTP2 = "nethttpomithttp2"

// alignAMD64 has functions begin at multiples of 4 bytes; of 32, which is the linker's choice for
// amd64, they take 344 KB more, of 16, as on arm64, 135 KB, and of 8 37 KB. Alternated rounds of GET
// and SET take the same processor time with all of them.
const alignAMD64 = " -funcalign=4"

// compile builds the program: static, without symbols, without paths of this machine.
func (r *release) compile(ctx context.Context, p platform, program string) error {
	linker := "-s -w -X main.release=" + r.version
	if p.arch == "amd64" {
		linker += alignAMD64
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", withoutHTTP2, fmt.Sprintf("-buildvcs=%v", !r.noVCS), "-ldflags", linker, "-o", program, "./cmd/holdfast")
	build.Dir = r.source
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOARM="+p.arm)
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	return build.Run()
}

// at is a file of the checkout.
func (r *release) at(name string) string { return filepath.Join(r.source, filepath.FromSlash(name)) }

// commitDate is when the commit was made that the checkout is at. For sources without Git
// SOURCE_DATE_EPOCH has the date, in seconds since 1970; the program then names no commit.
func (r *release) commitDate(ctx context.Context) (time.Time, error) {
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q: want seconds since 1970", text)
		}
		r.noVCS = true
		return time.Unix(seconds, 0).UTC(), nil
	}
	show := exec.CommandContext(ctx, "git", "log", "-1", "--format=%cI")
	show.Dir = r.source
	show.Stderr = os.Stderr
	out, err := show.Output()
	if err != nil {
		return time.Time{}, fmt.Errorf("git log in %s, for the date of the commit (or set SOURCE_DATE_EPOCH): %w", r.source, err)
	}
	date, err := time.Parse(time.RFC3339, strings.TrimSpace(string(out)))
	return date.UTC(), err
}

// checksums writes SHA256SUMS, which sha256sum -c reads.
func (r *release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		f, err := os.Open(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		f.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sum.Sum(nil), e.Name())
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
