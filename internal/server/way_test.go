package server

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// step is a function on the way of a SET, as docs/architecture.md names it.
type step struct{ file, function string }

// wayOfASet reads the table of the page.
func wayOfASet(t *testing.T) (way []step) {
	t.Helper()
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## The way of a SET\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| \\d+ \\| [a-z, ]+ \\| `([a-z/]+\\.go)` \\| (.*) \\|$").FindAllStringSubmatch(section, -1)
	for _, row := range rows {
		for name := range strings.SplitSeq(row[2], ", ") {
			way = append(way, step{row[1], strings.Trim(name, "`")})
		}
	}
	if len(way) < 20 {
		t.Fatalf("the table of the way of a SET has %d functions", len(way))
	}
	return way
}

// A SET passes through few files, and each function of the table is in its file.
func TestTheWayOfASetIsShort(t *testing.T) {
	t.Parallel()
	files := map[string][]string{}
	for _, s := range wayOfASet(t) {
		if files[s.file] == nil {
			files[s.file] = functionsIn(t, filepath.Join("..", s.file))
		}
		if !slices.Contains(files[s.file], s.function) {
			t.Errorf("internal/%s has no function %s", s.file, s.function)
		}
	}
	if len(files) > 20 {
		t.Errorf("the way of a SET goes through %d files, 20 at most are wanted", len(files))
	}
}

// functionsIn gives the functions of a file, methods as Type.Name.
func functionsIn(t *testing.T, file string) (names []string) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		f, is := d.(*ast.FuncDecl)
		if !is {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			of := f.Recv.List[0].Type
			if pointer, is := of.(*ast.StarExpr); is {
				of = pointer.X
			}
			if typ, is := of.(*ast.Ident); is {
				name = typ.Name + "." + name
			}
		}
		names = append(names, name)
	}
	return names
}

// A SET is followed through a server where it calls what its owner gives it: the clock,
// the file system and the permissions. Between the functions of the table that are on the
// stack there, no other file stands.
func TestASetGoesTheWayOfTheTable(t *testing.T) {
	t.Parallel()
	way := wayOfASet(t)
	var watch stacks
	s := start(t, func(cfg *Config) {
		cfg.May, cfg.Clock, cfg.FS = &watch, &watch, watchedFS{vfs.Default, &watch}
	})
	w := dialWire(t, s, "client", false)
	w.window(request(nil, "client", 1, stamp(), "SET", "key", "value"), 1)
	watch.begin()
	w.window(request(nil, "client", 2, stamp(), "SET", "key", "another"), 1)

	passed := map[step]bool{}
	for _, stack := range watch.end() {
		first := slices.IndexFunc(stack, func(s step) bool { return slices.Contains(way, s) })
		for last := len(stack); first >= 0 && last > first; last-- {
			if !slices.Contains(way, stack[last-1]) {
				continue
			}
			for _, on := range stack[first:last] {
				passed[on] = true
				if !slices.ContainsFunc(way, func(s step) bool { return s.file == on.file }) {
					t.Errorf("a SET passes through %s in internal/%s, which is not in the table: %v", on.function, on.file, stack)
				}
			}
			break
		}
	}
	for _, function := range []string{
		"Conn.read", "Conn.handleBuffered", "Conn.handlePackets", "Conn.handle", "Conn.handlePublish", "Conn.accept",
		"endpoint.Handle", "endpoint.execute", "session.Do", "session.write",
		"Journal.runCommitter", "Log.Sync", "Journal.callWaiters", "Conn.Durable", "Ring.Answered", "Broker.routeResponse",
	} {
		i := slices.IndexFunc(way, func(s step) bool { return s.function == function })
		if i < 0 || !passed[way[i]] {
			t.Errorf("the SET did not pass through %s", function)
		}
	}
}

// stacks are the stacks of the server where it calls its clock, its files or its
// permissions, outermost first.
type stacks struct {
	access.AllowAll
	mu      sync.Mutex
	watched bool     // guarded by mu, as seen
	seen    [][]step // of the functions of this module
}

func (s *stacks) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = true
}

func (s *stacks) end() [][]step {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = false
	return s.seen
}

// note keeps the caller's stack.
func (s *stacks) note() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.watched {
		return
	}
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var stack []step
	for {
		frame, more := frames.Next()
		if _, file, ours := strings.Cut(frame.File, "/internal/"); ours && strings.Contains(frame.Function, "github.com/holdfast-mqtt/holdfast/") {
			name := frame.Function[strings.LastIndexByte(frame.Function, '/')+1:]
			_, name, _ = strings.Cut(name, ".")
			stack = append(stack, step{file, strings.NewReplacer("(", "", "*", "", ")", "").Replace(name)})
		}
		if !more {
			break
		}
	}
	slices.Reverse(stack)
	s.seen = append(s.seen, stack)
}

func (s *stacks) MayPublish(*access.Identity, []byte) bool {
	s.note()
	return true
}

func (s *stacks) WallMs() int64 {
	s.note()
	return time.Now().UnixMilli()
}

func (s *stacks) SinceStart() time.Duration { return time.Since(processStart) }

var processStart = time.Now()

type watchedFS struct {
	vfs.FS
	watch *stacks
}

func (f watchedFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, category, opts...)
	return watchedFile{file, f.watch}, err
}

type watchedFile struct {
	vfs.File
	watch *stacks
}

func (f watchedFile) SyncData() error {
	f.watch.note()
	return f.File.SyncData()
}
