package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/engine/page"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// scanAll runs a SCAN to its end and returns the keys and the number of pages.
func scanAll(t *testing.T, c *client, pattern string) (keys []string, pages int) {
	t.Helper()
	cmd := &statestore.Command{Verb: statestore.Scan, Key: []byte(pattern)}
	for {
		a := &answer{c: c, label: "SCAN", done: make(chan struct{})}
		c.run(cmd, a)
		<-a.done
		if a.reply.Kind != statestore.Page {
			t.Fatalf("SCAN %s -> %s", pattern, show(&a.reply))
		}
		pages++
		for _, k := range a.reply.Keys {
			keys = append(keys, string(k))
		}
		if len(a.reply.Next) == 0 {
			return keys, pages
		}
		cmd.HasToken, cmd.Value = true, a.reply.Next
	}
}

func TestScan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{ScanPageKeys: 7, CanRead: func(o *Origin, key []byte) bool {
		return o.ID != "limited" || bytes.HasPrefix(key, []byte("a"))
	}})
	a := w.client("a")
	var all []string
	for i := range 30 {
		for _, prefix := range []string{"a", "b", "a\u00e9"} {
			key := fmt.Sprintf("%s%02d", prefix, i)
			a.do("SET " + key + " v")
			all = append(all, key)
		}
	}
	a.do("SET \xff\xfe v") // is not UTF-8
	a.do("SET deleted v")
	a.do("DEL deleted")
	a.do("SET late v PX=100")
	slices.Sort(all)
	having := func(part string, n int) (keys []string) {
		for _, k := range all {
			if strings.HasPrefix(k, part) && (n == 0 || len(k) == n) {
				keys = append(keys, k)
			}
		}
		return keys
	}
	w.clock.advance(100)
	for _, c := range []struct {
		pattern string
		want    []string
		pages   int
	}{
		{"*", all, 13},
		{"a*", having("a", 0), 9},
		{"b??", having("b", 0), 5},
		{"b0[0-3]", []string{"b00", "b01", "b02", "b03"}, 1},
		{"a[!0-9]*", having("a\u00e9", 0), 5},
		{"deleted", nil, 1},
		{"late", nil, 1},
		{"none*", nil, 1},
		{"\U0010FFFF*", nil, 1},
	} {
		keys, pages := scanAll(t, a, c.pattern)
		if !slices.Equal(keys, c.want) || pages != c.pages {
			t.Errorf("SCAN %s: %d pages, want %d: %q, want %q", c.pattern, pages, c.pages, keys, c.want)
		}
	}
	if keys, _ := scanAll(t, w.client("limited"), "*"); !slices.Equal(keys, having("a", 0)) {
		t.Errorf("with permission to read a*: %q", keys)
	}
}

func TestScanIsBoundedByBytesAndSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{ScanPageBytes: 100})
	a := w.client("a")
	for i := range 10 {
		a.do(fmt.Sprintf("SET %s%d v", strings.Repeat("k", 49), i))
	}
	if keys, pages := scanAll(t, a, "*"); len(keys) != 10 || pages != 5 {
		t.Errorf("%d keys on %d pages of 100 bytes", len(keys), pages)
	}
	for i := range page.MaxVisited + 1 {
		a.do(fmt.Sprintf("SET n%d v", i))
	}
	if keys, pages := scanAll(t, a, "*x"); len(keys) != 0 || pages != 2 {
		t.Errorf("%d keys on %d pages", len(keys), pages)
	}
}

func TestScanFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	token := statestore.EncodeToken(nil, []byte("b*"), []byte("b"))
	for _, c := range []struct {
		pattern string
		token   []byte
		want    statestore.Fault
	}{
		{"[", nil, statestore.Syntax},
		{"a*", token, statestore.MalformedToken},
		{"a*", []byte("x"), statestore.MalformedToken},
	} {
		got := &answer{c: a, label: "SCAN", done: make(chan struct{})}
		a.run(&statestore.Command{Verb: statestore.Scan, Key: []byte(c.pattern), Value: c.token, HasToken: c.token != nil}, got)
		if show(&got.reply) != c.want.Error() {
			t.Errorf("SCAN %s -> %s, want %v", c.pattern, show(&got.reply), c.want)
		}
	}
	// A token that was made up may start before the pattern's prefix, not a scan.
	a.wait("SET a v")
	before := statestore.EncodeToken(nil, []byte("b*"), []byte("a"))
	got := &answer{c: a, label: "SCAN", done: make(chan struct{})}
	a.run(&statestore.Command{Verb: statestore.Scan, Key: []byte("b*"), Value: before, HasToken: true}, got)
	if show(&got.reply) != "[] more=false" {
		t.Errorf("SCAN b* after a -> %s", show(&got.reply))
	}
}

// Where the disk cannot be read SCAN is refused, on the first page and on later ones.
// An empty page with a token would have the client ask again for ever.
func TestScanOfADiskThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{ScanPageKeys: 2})
	c := w.client("c")
	for i := range 10 {
		c.wait(fmt.Sprintf("SET k%d v", i))
	}
	if err := w.j.Flush(); err != nil { // to tables
		t.Fatal(err)
	}
	w.restart() // after which no block of them is in memory
	w.disk.FailReads(errors.New("medium error"))
	c = w.client("c")
	token := statestore.EncodeToken(nil, []byte("k*"), []byte("k3"))
	first, second := &statestore.Command{Verb: statestore.Scan, Key: []byte("k*")}, &statestore.Command{Verb: statestore.Scan, Key: []byte("k*"), Value: token, HasToken: true}
	for _, cmd := range []*statestore.Command{first, second} {
		a := &answer{c: c, label: "SCAN", done: make(chan struct{})}
		c.run(cmd, a)
		<-a.done
		if a.reply.Kind != statestore.Error || a.reply.Fault != statestore.Unreadable || a.reply.Next != nil {
			t.Errorf("SCAN -> %s, token %q", show(&a.reply), a.reply.Next)
		}
	}
	// Once it can be read again the same token goes on.
	w.disk.FailReads(nil)
	a := &answer{c: c, label: "SCAN", done: make(chan struct{})}
	c.run(second, a)
	if <-a.done; show(&a.reply) != "[k4 k5] more=true" {
		t.Errorf("SCAN -> %s", show(&a.reply))
	}
}

// A key that is present during the whole scan is returned exactly once, however
// many come and go beside it; and the token survives a restart.
func TestScanWhileKeysChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{ScanPageKeys: 5, MaxScans: 1})
	a := w.client("a")
	for i := range 50 {
		a.do(fmt.Sprintf("SET stays%02d v", i))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for id := range 2 {
		wg.Go(func() {
			c := w.client(fmt.Sprint("changes", id))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				c.wait(fmt.Sprintf("SET stays%02dx%d v", i%50, id))
				c.wait(fmt.Sprintf("DEL stays%02dx%d", i%50, id))
				c.wait(fmt.Sprintf("SET stays%02d w", i%50))
			}
		})
	}
	for range 4 {
		wg.Go(func() {
			keys, _ := scanAll(t, w.client("scans"), "stays??*")
			keys = slices.DeleteFunc(keys, func(k string) bool { return strings.Contains(k, "x") })
			if len(keys) != 50 || len(slices.Compact(slices.Clone(keys))) != 50 {
				t.Errorf("%d keys, want 50: %q", len(keys), keys)
			}
		})
	}
	cmd := &statestore.Command{Verb: statestore.Scan, Key: []byte("stays??")}
	first := &answer{c: a, label: "SCAN", done: make(chan struct{})}
	a.run(cmd, first)
	<-first.done
	close(stop)
	wg.Wait()
	w.restart()
	cmd.HasToken, cmd.Value = true, first.reply.Next
	second := &answer{c: w.client("a"), label: "SCAN", done: make(chan struct{})}
	second.c.run(cmd, second)
	if got := show(&second.reply); got != "[stays05 stays06 stays07 stays08 stays09] more=true" {
		t.Errorf("second page after a restart: %s", got)
	}
}

// A page ends after a bounded amount of keys and values looked at, whether they match
// or not.
func TestScanIsBoundedByWhatItReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	key := strings.Repeat("k", 64<<10-1)
	for i := range 2*page.MaxVisitedKeys>>16 + 1 {
		a.do("SET " + key + string(rune('A'+i)) + " v")
	}
	if keys, pages := scanAll(t, a, "*x"); len(keys) != 0 || pages != 3 {
		t.Errorf("long keys: %d keys on %d pages, want 0 on 3", len(keys), pages)
	}
	value := strings.Repeat("v", page.MaxVisitedBytes/4)
	for i := range 5 {
		a.do(fmt.Sprintf("SET v%d %s", i, value))
	}
	if keys, pages := scanAll(t, a, "v*"); len(keys) != 5 || pages != 2 {
		t.Errorf("large values: %d keys on %d pages, want 5 on 2", len(keys), pages)
	}
}

// A SCAN is given up when its connection is gone: while it reads, and while it waits
// for a place. The token that it ends with goes on where it has stopped.
func TestScanEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxScans: 1})
	a := w.client("a")
	for i := range 10 {
		a.do(fmt.Sprintf("SET k%d v", i))
	}
	w.settle()
	w.log.take()
	left := 4
	c := w.open(Origin{ID: "c", Gone: func() bool { left--; return left < 0 }})
	if got := c.wait("SCAN *"); len(got.Keys) != 3 || len(got.Next) == 0 {
		t.Errorf("SCAN of a client that goes -> %s", show(got))
	}

	w.e.scans <- struct{}{} // another has the only place
	left = 2
	if got := c.wait("SCAN *"); len(got.Keys) != 0 || len(got.Next) == 0 {
		t.Errorf("SCAN that waits for a place -> %s", show(got))
	}
	d := w.client("d")
	d.Close()
	if got := d.wait("SCAN *"); len(got.Keys) != 0 || len(got.Next) == 0 {
		t.Errorf("SCAN of a session that is closed -> %s", show(got))
	}
	<-w.e.scans
	if keys, _ := scanAll(t, a, "*"); len(keys) != 10 {
		t.Errorf("%d keys, want all 10", len(keys))
	}
}

// A SCAN tells of its work, so that its connection can let others work in between.
func TestScanTellsOfItsWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	for i := range 10 {
		a.wait(fmt.Sprintf("SET k%d v", i))
	}
	a.wait("SET l" + strings.Repeat("k", 64*page.MatchedPerUnit) + " v")
	var told []int
	c := w.open(Origin{ID: "c", Work: func(units int) { told = append(told, units) }})
	c.wait("SCAN *")
	if want := []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 65}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// SCANs of clients that may read nothing of many keys give their place away in between, and
// have left the gate, in which the others wait for their turn to work, before they wait for
// it again: else the one with the place would wait for the gate for ever, and the one in the
// gate for the place.
func TestScansOfHiddenKeysWaitOutsideOfTheGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxScans: 1, CanRead: func(o *Origin, _ []byte) bool { return o.ID != "limited" }})
	writer := w.client("writer")
	for i := range page.MaxVisited + 1 {
		writer.do(fmt.Sprint("SET k", i, " v"))
	}
	w.settle()
	gate := make(chan struct{}, 1)
	var scans sync.WaitGroup
	for range 3 {
		inside := false
		leave := func() {
			if inside {
				inside = false
				<-gate
			}
		}
		c := w.open(Origin{ID: "limited", Rest: leave, Work: func(int) {
			if !inside {
				gate <- struct{}{}
				inside = true
			}
		}})
		scans.Go(func() {
			if keys, pages := scanAll(t, c, "*"); len(keys) > 0 || pages != 1 {
				t.Errorf("%d keys in %d pages, want none in one", len(keys), pages)
			}
			leave()
		})
	}
	scans.Wait()
}

// scanPage asks for one page and returns it.
func scanPage(c *client, cmd statestore.Command) *statestore.Reply {
	cmd.Verb = statestore.Scan
	a := &answer{c: c, label: "SCAN", done: make(chan struct{})}
	c.run(&cmd, a)
	<-a.done
	return &a.reply
}

// With values a page has each key's newest value, with its version, as a GET has it.
func TestScanWithValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	large := strings.Repeat("l", table.MaxSlot+1) // on the Go heap
	c.wait("SET a old")
	c.wait("SET a new")
	c.wait("SET b " + large)
	c.wait("SET c gone")
	c.wait("DEL c")
	empty := &answer{c: c, label: "SET", done: make(chan struct{})}
	c.run(&statestore.Command{Verb: statestore.Set, Key: []byte("d"), Time: statestore.Stamp{State: statestore.Given}}, empty)
	<-empty.done
	got := scanPage(c, statestore.Command{Key: []byte("*"), Values: true})
	if len(got.Keys) != 3 || len(got.Values) != 3 || got.Next != nil {
		t.Fatalf("%d keys, %d values, token %q", len(got.Keys), len(got.Values), got.Next)
	}
	for i, key := range []string{"a", "b", "d"} {
		value := c.wait("GET " + key)
		if v := got.Values[i]; string(got.Keys[i]) != key || v.Bytes == nil || !bytes.Equal(v.Bytes, value.Value) || v.Version != value.Version {
			t.Errorf("%s: %.20q of version %v; GET says %.20q of version %v", got.Keys[i], v.Bytes, v.Version, value.Value, value.Version)
		}
	}
	if got := scanPage(c, statestore.Command{Key: []byte("*")}); got.Values != nil {
		t.Errorf("without the option there are %d values", len(got.Values))
	}
}

// A page with values shows nothing that could still be lost.
func TestScanWithValuesWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.wait("SET a old")
	w.settle()
	w.log.take()
	w.disk.Hold()
	set := c.do("SET a new")
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	d := w.open(Origin{ID: "d", Gone: func() bool { begin(); return false }})
	answered := make(chan *statestore.Reply)
	go func() { answered <- scanPage(d, statestore.Command{Key: []byte("*"), Values: true}) }()
	<-begun
	w.disk.Release(nil)
	if got := <-answered; string(got.Values[0].Bytes) != "new" {
		t.Errorf("value %s, want new", got.Values[0].Bytes)
	}
	<-set.done
	if said := w.log.take(); len(said) != 2 || !strings.Contains(said[0], "SET") || !strings.Contains(said[1], "SCAN") {
		t.Errorf("replies in the order %q, want that to the SET first", said)
	}
}

// A page comes after the notifications of the changes that it shows, to a session that
// watches their keys.
func TestScanFollowsNotifications(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c, d := w.client("c"), w.client("d")
	d.wait("SET k v")
	c.wait("WATCH k")
	for i := range 50 {
		w.settle()
		w.log.take()
		del := d.do("DEL k")
		got := scanPage(c, statestore.Command{Key: []byte("*")})
		<-del.done
		d.wait("SET k v")
		w.settle()
		said := strings.Join(w.log.take(), "\n")
		event, page := strings.Index(said, "c: event k deleted"), strings.Index(said, "c: SCAN")
		if len(got.Keys) > 0 || event < 0 || page < event {
			t.Fatalf("round %d:\n%s", i, said)
		}
	}
}

// Values count against the bytes of a page. One that is larger than a page has a page
// of its own.
func TestScanWithValuesIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{ScanPageBytes: 100})
	c := w.client("c")
	for i, size := range []int{48, 48, 49, 1, 500, 1} { // the keys have two bytes
		c.wait(fmt.Sprintf("SET k%d %s", i, strings.Repeat("v", size)))
	}
	cmd := statestore.Command{Key: []byte("*"), Values: true}
	var pages []string
	for {
		got := scanPage(c, cmd)
		sizes := make([]int, len(got.Values))
		for i, v := range got.Values {
			sizes[i] = len(v.Bytes)
		}
		pages = append(pages, fmt.Sprint(sizes))
		if got.Next == nil {
			break
		}
		cmd.HasToken, cmd.Value = true, got.Next
	}
	if want := "[48 48] [49 1] [500] [1]"; strings.Join(pages, " ") != want {
		t.Errorf("values on pages: %s, want %s", pages, want)
	}
}

// BINARY brings the keys that are not UTF-8 as well.
func TestScanOfBinaryKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{ScanPageKeys: 2})
	c := w.client("c")
	for _, key := range []string{"a", "caf\xe9", "caf\xe9\xff", "café", "\xff\xff"} {
		c.wait("SET " + key + " v")
	}
	for pattern, want := range map[string][]string{
		"*":        {"a", "caf\xc3\xa9", "caf\xe9", "caf\xe9\xff", "\xff\xff"},
		"caf\xe9*": {"caf\xe9", "caf\xe9\xff"},
		"caf?":     {"caf\xe9"},
		"\xff*":    {"\xff\xff"},
	} {
		cmd := statestore.Command{Key: []byte(pattern), Binary: true}
		var keys []string
		for {
			got := scanPage(c, cmd)
			for _, key := range got.Keys {
				keys = append(keys, string(key))
			}
			if got.Next == nil {
				break
			}
			cmd.HasToken, cmd.Value = true, got.Next
		}
		if !slices.Equal(keys, want) {
			t.Errorf("%q: %q, want %q", pattern, keys, want)
		}
	}
}

// A page fits in what the client takes: at the bound a value comes, one byte below it
// is left out, and a key that doesn't fit itself is an error.
func TestScanFitsTheClientsPackets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.wait("SET key " + strings.Repeat("v", 1000))
	cmd := statestore.Command{Key: []byte("*"), Values: true}
	got := scanPage(c, cmd)
	whole := len(protocol.AppendReply(nil, protocol.SDK, got))
	most := 0
	for cmd.MaxPage = whole; most == 0; cmd.MaxPage++ {
		if got := scanPage(c, cmd); got.Values[0].Bytes != nil {
			most = cmd.MaxPage
		}
	}
	if most > whole+200 {
		t.Errorf("a page of %d bytes is sent from a maximum of %d on", whole, most)
	}
	cmd.MaxPage = most - 1
	if got := scanPage(c, cmd); len(got.Values) != 1 || got.Values[0].Bytes != nil || got.Values[0].Version.IsZero() {
		t.Errorf("one byte less: %d values", len(got.Values))
	}
	cmd.MaxPage = 50
	if got := scanPage(c, cmd); got.Fault != statestore.PageTooLarge {
		t.Errorf("no room for the key: %s", show(got))
	}
}

// However small the packets that the client takes, each page fits, and every key comes
// once. A long key that doesn't match, whose token would not fit, is passed all the same.
func TestScanInSmallPackets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	var want []string
	for i := range 40 {
		key := fmt.Sprintf("k%02d", i)
		c.wait(fmt.Sprintf("SET %s %s", key, strings.Repeat("v", i+1)))
		want = append(want, key)
		if i%10 == 5 {
			c.wait("SET " + key + strings.Repeat("x", 400) + " v")
		}
	}
	for _, values := range []bool{false, true} {
		cmd := statestore.Command{Key: []byte("k??"), Values: values, MaxPage: 300}
		var keys []string
		for range 100 {
			got := scanPage(c, cmd)
			if n := len(protocol.AppendReply(nil, protocol.SDK, got)); n > 300 || got.Kind != statestore.Page {
				t.Fatalf("a page of %d bytes: %s", n, show(got))
			}
			for _, key := range got.Keys {
				keys = append(keys, string(key))
			}
			if got.Next == nil {
				break
			}
			cmd.HasToken, cmd.Value = true, bytes.Clone(got.Next)
		}
		if !slices.Equal(keys, want) {
			t.Errorf("values %v: %q, want %q", values, keys, want)
		}
	}
	cmd := statestore.Command{Key: []byte("k*"), MaxPage: 300}
	for range 100 {
		got := scanPage(c, cmd)
		if got.Next == nil {
			if got.Fault != statestore.PageTooLarge {
				t.Errorf("a key that can't be sent: %s", show(got))
			}
			return
		}
		cmd.HasToken, cmd.Value = true, bytes.Clone(got.Next)
	}
	t.Error("the scan has no end")
}
