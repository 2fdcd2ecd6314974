package passwd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// What mosquitto_passwd 2.0.11 has written, for the password "secret".
const (
	alice = "alice:$7$101$A8a90tLhDJVIx6YA$hAP4KxMrVsDdy/bwQxWYUJKhFgaSiGL5PY12qaQkMv0H+Iej5EOWINwaKGnA/hw15QX5DqqpsaSPljukOQyOvQ=="
	bob   = "bob:$6$7QTg8okpZVM/pZtm$eZCEbNKFnjYhZxI2oaOvoEOJEQYjYz6F5pQf6lePGiWn26BnvKK6g/DSGCKNlo+8WkYTfS5pPvkz/BxDfQ9v/A=="
)

func parse(t *testing.T, lines ...string) *File {
	t.Helper()
	f, err := Parse("users", strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestVerifiesBothKindsOfHashes(t *testing.T) {
	t.Parallel()
	f := parse(t, "# users", alice, "", bob+"\r", "")
	for _, c := range []struct {
		user, password string
		want           bool
	}{
		{"alice", "secret", true},
		{"bob", "secret", true},
		{"alice", "Secret", false},
		{"bob", "secret ", false},
		{"alice", "", false},
		{"carol", "secret", false},
		{"", "secret", false},
	} {
		if got := f.Verify(c.user, []byte(c.password)); got != c.want {
			t.Errorf("%s, %q: got %v, want %v", c.user, c.password, got, c.want)
		}
	}
	if f.Len() != 2 {
		t.Errorf("got %d users, want 2", f.Len())
	}
}

// The cheap check knows a password that the expensive one has found right, and nothing
// else.
func TestProven(t *testing.T) {
	t.Parallel()
	f := parse(t, alice, bob)
	f.Verify("alice", []byte("wrong"))
	for _, password := range []string{"secret", "wrong"} {
		if f.Proven("alice", []byte(password)) {
			t.Errorf("%q counts as proven, and was not verified", password)
		}
	}
	f.Verify("alice", []byte("secret"))
	for _, c := range []struct {
		user, password string
		want           bool
	}{{"alice", "secret", true}, {"alice", "wrong", false}, {"bob", "secret", false}, {"carol", "secret", false}} {
		if got := f.Proven(c.user, []byte(c.password)); got != c.want {
			t.Errorf("%s, %q: got %v, want %v", c.user, c.password, got, c.want)
		}
	}
}

// What was proven survives a reload for the entries that stay as they are.
func TestReloadKeepsWhatWasProven(t *testing.T) {
	t.Parallel()
	path := write(t, alice+"\n"+bob+"\n")
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Verify("alice", []byte("secret"))
	f.Verify("bob", []byte("secret"))
	if err := Set(path, "bob", []byte("secret"), MinIterations); err != nil {
		t.Fatal(err)
	}
	next, err := Reload(path, f)
	if err != nil {
		t.Fatal(err)
	}
	if !next.Proven("alice", []byte("secret")) || next.Proven("bob", []byte("secret")) {
		t.Error("want alice's password as proven, and bob's entry is a new one")
	}
	if f.Entry("alice") != next.Entry("alice") || f.Entry("bob") == next.Entry("bob") || next.Entry("carol") != "" {
		t.Error("want alice's entry the same, and bob's not")
	}
}

// An unknown user costs what a known one does.
func TestUnknownUsersCostAsMuchAsKnownOnes(t *testing.T) {
	t.Parallel()
	f := parse(t, alice, strings.Replace(alice, "alice:$7$101$", "dora:$7$1000$", 1))
	seen := map[int]bool{}
	for i := range 200 {
		user := fmt.Sprint("unknown", i)
		first, again := f.dummy(user), f.dummy(user)
		if first.iterations != again.iterations {
			t.Fatalf("%s costs %d iterations, then %d", user, first.iterations, again.iterations)
		}
		seen[first.iterations] = true
	}
	if len(seen) != 2 || !seen[101] || !seen[1000] {
		t.Errorf("unknown users cost %v iterations, want those of the known ones", seen)
	}
	if got := parse(t).dummy("carol").iterations; got != DefaultIterations {
		t.Errorf("without users an unknown one costs %d iterations, want %d", got, DefaultIterations)
	}
}

func TestBrokenFiles(t *testing.T) {
	t.Parallel()
	hash := strings.TrimPrefix(alice, "alice:")
	for _, c := range []struct{ content, want string }{
		{"alice", "users:1: want USER:HASH"},
		{"# x\n\n:" + hash, "users:3: the user name is empty"},
		{alice + "\n" + bob + "\n" + alice, `users:3: user "alice" is in line 1 already`},
		{"alice:secret", `users:1: user "alice": the password is not hashed; convert the file with mosquitto_passwd -U`},
		{"alice:$ecretPassword", "alice\": the password is not hashed"},
		{"alice:$7$ecretPassword", "alice\": the hash is cut off"},
		{"alice:$5$salt$key", "unknown kind of hash $5$"},
		{"alice:$argon2id$v=19$m=1,t=1,p=1$c2FsdA$aGFzaA", "unknown kind of hash $argon2id$"},
		{"alice:$7$x$A8a90tLhDJVIx6YA$a", `iterations "x" is not a whole number`},
		{"alice:$7$0$A8a90tLhDJVIx6YA$a", `iterations "0" is not a whole number above 0`},
		{"alice:$7$-1$A8a90tLhDJVIx6YA$a", "not a whole number"},
		{"alice:$7$2000001$A8a90tLhDJVIx6YA$a", "2000001 iterations would take the server too long for each login; 2000000 is the maximum"},
		{"alice:$7$99999999999999999999$A8a90tLhDJVIx6YA$a", "not a whole number"},
		{"alice:$7$101", "the hash is cut off"},
		{"alice:$6$", "the hash is cut off"},
		{"alice:$7$101$$a", "the salt is not base64"},
		{"alice:$7$101$*$a", "the salt is not base64"},
		{"alice:$7$101$A8a90tLhDJVIx6YA$aGFzaA==", "the key is not base64 of 64 bytes"},
		{alice + ":more", "the key is not base64"},
		{"al\x01ice:" + hash, "control character"},
		{"al\xffice:" + hash, "not valid UTF-8"},
	} {
		_, err := Parse("users", strings.NewReader(c.content))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "users:") {
			t.Errorf("%q: got %v, want an error with %q", c.content, err, c.want)
		}
	}
	// At the bound it is read.
	parse(t, "alice:$7$2000000$"+strings.SplitN(hash, "$", 4)[3])
}

func write(t *testing.T, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadRefusesFilesThatOthersCanRead(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a file of Windows has no mode for the group and others, so Load has nothing to refuse")
	}
	path := write(t, alice)
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "run chmod 600 "+path) {
			t.Errorf("mode %o: got %v, want an error that says chmod 600", mode, err)
		}
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: got %v", err)
	}
	if _, err := Load(path + ".none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got %v", err)
	}
}

func TestEditKeepsOtherLines(t *testing.T) {
	t.Parallel()
	path := write(t, "# the users\n"+alice+"\n\n"+bob) // no newline at its end
	if err := Set(path, "carol", []byte("of carol"), MinIterations); err != nil {
		t.Fatal(err)
	}
	if err := Set(path, "alice", []byte("changed"), MinIterations); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) != 6 || lines[0] != "# the users" || !strings.HasPrefix(lines[1], "alice:$7$1000$") || lines[2] != "" || lines[3] != bob || !strings.HasPrefix(lines[4], "carol:") || lines[5] != "" {
		t.Errorf("got %q", lines)
	}
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Verify("carol", []byte("of carol")) || !f.Verify("alice", []byte("changed")) || f.Verify("alice", []byte("secret")) || !f.Verify("bob", []byte("secret")) {
		t.Error("the passwords are not those that were set")
	}
	if err := Delete(path, "alice"); err != nil {
		t.Fatal(err)
	}
	if f, err = Load(path); err != nil || f.Entry("alice") != "" || f.Entry("bob") == "" {
		t.Errorf("after alice's deletion: %v, %v", f, err)
	}
	if err := Delete(path, "alice"); !errors.Is(err, ErrNoUser) {
		t.Errorf("deleted twice: got %v, want ErrNoUser", err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

func TestEditMakesTheFilePrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users")
	for _, mode := range []os.FileMode{0, 0o644} { // made new, and found readable
		if mode != 0 {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := Set(path, "alice", []byte("x"), MinIterations); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); runtime.GOOS != "windows" && got != 0o600 {
			t.Errorf("got mode %o, want 600", got)
		}
	}
}

func TestEditFollowsALink(t *testing.T) {
	t.Parallel()
	path := write(t, alice+"\n")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Skip("this user may not make the symbolic link that the test edits through (on Windows that takes a privilege): ", err)
	}
	if err := Set(link, "bob", []byte("x"), MinIterations); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
	if f, err := Load(path); err != nil || f.Entry("bob") == "" {
		t.Errorf("the file behind the link: %v, %v", f, err)
	}
}

func TestEditRefuses(t *testing.T) {
	t.Parallel()
	broken := write(t, "alice\n")
	for _, c := range []struct {
		err  error
		want string
	}{
		{Set(broken, "bob", []byte("x"), MinIterations), broken + ":1: want USER:HASH"},
		{Set(write(t, ""), "", []byte("x"), MinIterations), "empty"},
		{Set(write(t, ""), "a:b", []byte("x"), MinIterations), "colon"},
		{Set(write(t, ""), " a", []byte("x"), MinIterations), "space"},
		{Set(write(t, ""), "#a", []byte("x"), MinIterations), "begins with #"},
		{Set(write(t, ""), "a", nil, MinIterations), "the password is empty"},
		{Set(write(t, ""), "a", []byte("x\x00"), MinIterations), "ends in a zero byte"},
		{Set(write(t, ""), "a", make([]byte, MaxPassword+1), MinIterations), "65536 bytes"},
		{Set(write(t, ""), "a", []byte("x"), MinIterations-1), "999 iterations"},
		{Set(write(t, ""), "a", []byte("x"), MaxIterations+1), "2000001 iterations"},
		{Delete(filepath.Join(t.TempDir(), "none"), "a"), "no such file"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", c.err, c.want)
		}
	}
	if content, _ := os.ReadFile(broken); string(content) != "alice\n" {
		t.Errorf("the broken file is now %q", content)
	}
}

// A file that is read is read the same after it was written.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{alice, alice + "\r\n# x\n" + bob + "\n", "a:$7$1$$", ":", "a:$6$AAAA$", "\x00:\xff", "a:$7$2000001$AAAA$AAAA"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("users", strings.NewReader(string(data)))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "users:") {
				t.Errorf("the error names no line: %v", err)
			}
			return
		}
		var b strings.Builder
		for _, e := range file.order {
			b.WriteString(e.user + ":" + e.hash.String() + "\n")
		}
		again, err := Parse("again", strings.NewReader(b.String()))
		if err != nil {
			t.Fatalf("what was read is written as %q, which is an error: %v", b.String(), err)
		}
		if len(again.order) != len(file.order) {
			t.Fatalf("%d users, then %d", len(file.order), len(again.order))
		}
		for _, e := range file.order {
			if file.Entry(e.user) != again.Entry(e.user) {
				t.Fatalf("the entry of %q has changed", e.user)
			}
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	for _, iterations := range []int{101, DefaultIterations} {
		h, err := newHash([]byte("secret"), iterations)
		if err != nil {
			b.Fatal(err)
		}
		f, err := Parse("users", strings.NewReader("alice:"+h.String()))
		if err != nil {
			b.Fatal(err)
		}
		for user, name := range map[string]string{"alice": "known", "carol": "unknown"} {
			b.Run(fmt.Sprintf("%d/%s", iterations, name), func(b *testing.B) {
				for b.Loop() {
					f.Verify(user, []byte("wrong"))
				}
			})
		}
	}
	f, err := Parse("users", strings.NewReader(alice))
	if err != nil {
		b.Fatal(err)
	}
	f.Verify("alice", []byte("secret"))
	b.Run("proven", func(b *testing.B) {
		for b.Loop() {
			if !f.Proven("alice", []byte("secret")) {
				b.Fatal("not proven")
			}
		}
	})
}
