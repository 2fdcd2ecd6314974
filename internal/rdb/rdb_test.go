package rdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Parts of dumps, as the format has them.

const header = "REDIS0011"

// end ends a dump without a checksum.
const end = "\xff\x00\x00\x00\x00\x00\x00\x00\x00"

// str is a string as it is, with its length in front of it.
func str(s string) string { return num(uint64(len(s))) + s }

// num is a length in its shortest form.
func num(n uint64) string {
	switch {
	case n < 1<<6:
		return string([]byte{byte(n)})
	case n < 1<<14:
		return string([]byte{0x40 | byte(n>>8), byte(n)})
	case n < 1<<32:
		return string(binary.BigEndian.AppendUint32([]byte{0x80}, uint32(n)))
	}
	return long(n)
}

// long is a length of 64 bits.
func long(n uint64) string { return string(binary.BigEndian.AppendUint64([]byte{0x81}, n)) }

// little is a number of 64 bits outside of lengths.
func little(n int64) string { return string(binary.LittleEndian.AppendUint64(nil, uint64(n))) }

// lzf is a compressed string that claims a size.
func lzf(size uint64, packed string) string {
	return "\xc3" + num(uint64(len(packed))) + num(size) + packed
}

// readAll reads a dump whose size is known.
func readAll(dump string) (entries []Entry, err error) {
	return readSized(dump, int64(len(dump)))
}

func readSized(dump string, size int64) (entries []Entry, err error) {
	for e, failed := range Read(strings.NewReader(dump), Options{Size: size}) {
		if failed != nil {
			return entries, failed
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func TestStrings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ encoded, want string }{
		"empty":                       {str(""), ""},
		"a length of 6 bits":          {str("hello"), "hello"},
		"a length of 14 bits":         {str(strings.Repeat("x", 64)), strings.Repeat("x", 64)},
		"a length of 32 bits":         {str(strings.Repeat("x", 1<<14)), strings.Repeat("x", 1<<14)},
		"a length of 64 bits":         {long(3) + "abc", "abc"},
		"larger than is read at once": {str(strings.Repeat("x", 1<<16+1)), strings.Repeat("x", 1<<16+1)},
		"8 bits":                      {"\xc0\xff", "-1"},
		"16 bits":                     {"\xc1\x00\x80", "-32768"},
		"32 bits":                     {"\xc2\xff\xff\xff\x7f", "2147483647"},
		"LZF, as it is":               {lzf(3, "\x02abc"), "abc"},
		"LZF, a reference":            {lzf(9, "\x02abc\x80\x02"), "abcabcabc"},
		"LZF, one that overlaps":      {lzf(1+2+7+255, "\x00x\xe0\xff\x00"), strings.Repeat("x", 265)},
		"LZF, nothing":                {lzf(0, ""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := readAll(header + "\x00" + str("key") + test.encoded + end)
			if err != nil || len(got) != 1 || string(got[0].Key) != "key" || got[0].Type != String || string(got[0].Value) != test.want {
				t.Errorf("got %.200v, %v; want %.80q", got, err, test.want)
			}
		})
	}
}

// Whatever a key of another type has is read over, up to the key behind it.
func TestOtherTypes(t *testing.T) {
	t.Parallel()
	id, ms := strings.Repeat("i", 16), strings.Repeat("m", 8)
	stream := func(figures, group, consumer int) string {
		return num(1) + str(id) + str("listpack") + strings.Repeat(num(1), figures) + // entries
			num(1) + str("group") + strings.Repeat(num(1), group) +
			num(1) + id + ms + num(1) + // not acknowledged
			num(1) + str("consumer") + strings.Repeat(ms, consumer) + num(1) + id
	}
	for _, test := range []struct {
		encoding byte
		is       Type
		holds    string
	}{
		{1, List, num(2) + str("a") + "\xc0\x01"},
		{2, Set, num(1) + lzf(3, "\x02abc")},
		{3, ZSet, num(3) + str("a") + "\x031.5" + str("b") + "\xfe" + str("c") + "\xfd"},
		{4, Hash, num(1) + str("field") + str("value")},
		{5, ZSet, num(1) + str("a") + ms},
		{9, Hash, str("zipmap")},
		{10, List, str("ziplist")},
		{11, Set, str("intset")},
		{12, ZSet, str("ziplist")},
		{13, Hash, lzf(9, "\x02abc\x80\x02")},
		{14, List, num(2) + str("ziplist") + str("ziplist")},
		{15, Stream, stream(3, 2, 1)},
		{16, Hash, str("listpack")},
		{17, ZSet, str("listpack")},
		{18, List, num(2) + num(1) + str("plain") + num(2) + str("listpack")},
		{19, Stream, stream(8, 3, 1)},
		{20, Set, str("listpack")},
		{21, Stream, stream(8, 3, 2)},
		{24, Hash, ms + num(1) + num(5) + str("field") + str("value")},
		{25, Hash, ms + str("listpack")},
		{7, Module, long(0x1234567890) + num(1) + num(7) + num(2) + num(7) + num(3) + "floa" + num(4) + ms + num(5) + str("text") + num(0)},
	} {
		got, err := readAll(header + string(rune(test.encoding)) + str("other") + test.holds + "\x00" + str("behind") + str("it") + end)
		want := []Entry{{Key: []byte("other"), Type: test.is}, {Key: []byte("behind"), Type: String, Value: []byte("it")}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("type %d: got %+v, %v", test.encoding, got, err)
		}
	}
}

// Expiry and database are those of the key behind them; what else a dump has is read over.
func TestOpcodes(t *testing.T) {
	t.Parallel()
	key := func(name string) string { return "\x00" + str(name) + str("v") }
	got, err := readAll(header +
		"\xfa" + str("redis-ver") + str("7.0.15") +
		"\xf5" + str("#!lua name=lib") +
		"\xf7" + long(0x1234567890) + num(2) + num(1) + num(5) + str("aux") + num(0) +
		"\xfe" + num(0) + "\xfb" + num(5) + num(2) +
		"\xfd\x01\x00\x00\x00" + "\xf8" + num(300) + key("seconds") +
		"\xfc" + little(4102444800123) + "\xf9\x05" + key("milliseconds") +
		"\xfc" + little(-1) + key("never") +
		"\xfc" + little(-62135596800000) + key("before the zero Time") +
		key("no expiry") +
		"\xfe" + num(3) + "\xf4" + num(1) + num(2) + num(3) + key("database 3") + end)
	if err != nil {
		t.Fatal(err)
	}
	var is []string
	for _, e := range got {
		expires := "never"
		if !e.Expires.IsZero() {
			expires = fmt.Sprint(e.Expires.UnixMilli())
		}
		is = append(is, fmt.Sprintf("%d %s %s", e.DB, e.Key, expires))
	}
	want := []string{"0 seconds 1000", "0 milliseconds 4102444800123", "0 never never", "0 before the zero Time 0", "0 no expiry never", "3 database 3 never"}
	if !slices.Equal(is, want) {
		t.Errorf("got %q,\nwant %q", is, want)
	}
}

// What a dump of Redis 7.0 has, with each type in the forms that it gives small and large ones.
func TestDumpOfRedis(t *testing.T) {
	t.Parallel()
	dump, err := os.ReadFile("testdata/redis-7.0.rdb")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := readAll(string(dump))
	if err != nil {
		t.Fatal(err)
	}
	values, types := make(map[string]string), make(map[Type]int)
	for _, e := range entries {
		types[e.Type]++
		if e.Type == String {
			values[fmt.Sprint(e.DB, " ", string(e.Key))] = string(e.Value)
		}
		if string(e.Key) == "greeting" && !e.Expires.Equal(time.UnixMilli(4102444800123)) {
			t.Errorf("greeting expires at %v", e.Expires)
		}
	}
	if want := map[string]string{
		"0 greeting": "hello", "0 small": "7", "0 mid": "-3000", "0 large": "100000000", "0 long": strings.Repeat("x", 400), "3 other": "1",
	}; !maps.Equal(values, want) {
		t.Errorf("strings are %q", values)
	}
	if want := map[Type]int{String: 6, List: 2, Set: 3, ZSet: 2, Hash: 2, Stream: 1}; !maps.Equal(types, want) {
		t.Errorf("types are %v", types)
	}

	dump[bytes.Index(dump, []byte("hello"))] ^= 1
	if _, err := readAll(string(dump)); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("with a bit inverted: %v", err)
	}
	for n := range len(dump) {
		if _, err := readAll(string(dump[:n])); err == nil {
			t.Fatalf("%d of %d bytes are taken for a dump", n, len(dump))
		}
	}
}

// badDumps are dumps that no server has written, and what the error says.
var badDumps = map[string]struct{ dump, want string }{
	"nothing":                       {"", "not a dump of Redis"},
	"another file":                  {"SQLite format 3\x00", "not a dump of Redis"},
	"a version with a sign":         {"REDIS-001", "not a dump of Redis"},
	"cut off":                       {header + "\x00" + num(3) + "k", "byte 11: 3 bytes of a string, where the file has 1 more bytes"},
	"without an end":                {header, "byte 9: the dump is cut off"},
	"a value of 2^63 bytes":         {header + "\x00" + str("k") + long(1<<63), "byte 21: key \"k\", a string: a string of 9223372036854775808 bytes: Redis has none above 536870912"},
	"a value larger than the file":  {header + "\x00" + str("k") + num(1<<20) + end, "1048576 bytes of a string, where the file has 9 more bytes"},
	"a value one byte too large":    {header + "\x00" + str("k") + num(MaxString+1), "Redis has none above 536870912"},
	"a key of 2^63 bytes":           {header + "\x00" + long(1<<63), "9223372036854775808 bytes"},
	"a list of 2^63 items":          {header + "\x01" + str("k") + long(1<<63) + end, "9223372036854775808 items, where the file has 9 more bytes"},
	"a ziplist of 2^63 bytes":       {header + "\x0a" + str("k") + long(1<<63) + end, "9223372036854775808 bytes"},
	"a ziplist of 4 GiB":            {header + "\x0a" + str("k") + num(1<<32-1) + end, "4294967295 bytes of a string, where the file has 9 more bytes"},
	"LZF that claims 4 GiB":         {header + "\x00" + str("k") + lzf(1<<32, "\x00x") + end, "would have 4294967296 bytes: Redis has none above 536870912"},
	"LZF that claims 512 MiB":       {header + "\x00" + str("k") + lzf(MaxString, "\x00x") + end, "a compressed string is damaged"},
	"LZF that claims too little":    {header + "\x00" + str("k") + lzf(2, "\x02abc") + end, "a compressed string is damaged"},
	"LZF of 2^63 bytes":             {header + "\x00" + str("k") + "\xc3" + long(1<<63) + num(5) + end, "9223372036854775808 bytes"},
	"LZF that ends in bytes":        {header + "\x00" + str("k") + lzf(3, "\x02ab") + end, "a compressed string is damaged"},
	"LZF that ends in a reference":  {header + "\x00" + str("k") + lzf(4, "\x00x\x20") + end, "a compressed string is damaged"},
	"LZF that ends in a length":     {header + "\x00" + str("k") + lzf(4, "\x00x\xe0") + end, "a compressed string is damaged"},
	"LZF that refers to nothing":    {header + "\x00" + str("k") + lzf(4, "\x00x\x20\x01") + end, "a compressed string is damaged"},
	"LZF of another type, too long": {header + "\x0a" + str("k") + "\xc3" + long(1<<63) + num(5) + end, "9223372036854775808 bytes"},
	"an unknown encoding":           {header + "\x00" + str("k") + "\xc4" + end, "a string has the unknown encoding 4"},
	"an unknown encoding of a list": {header + "\x0a" + str("k") + "\xc4" + end, "a string has the unknown encoding 4"},
	"an unknown length":             {header + "\x00" + str("k") + "\x82" + end, "a length begins with 0x82"},
	"a string for a length":         {header + "\xfe\xc0\x01" + end, "a string, where there must be a length"},
	"an unknown type":               {header + "\x63" + str("k") + end, "type 99 of a dump of version 11 is not known"},
	"data of an old module":         {header + "\x06" + str("k") + long(1) + end, "before Redis 4.0"},
	"an unknown value of a module":  {header + "\x07" + str("k") + long(1) + num(6) + end, "key \"k\", a module: a module's value has the unknown kind 6"},
	"another checksum":              {header + "\xff\x01\x00\x00\x00\x00\x00\x00\x00", "the checksum is 0000000000000001"},
}

func TestBadDumps(t *testing.T) {
	t.Parallel()
	for name, test := range badDumps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			entries, err := readAll(test.dump)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "byte ") || len(entries) > 0 {
				t.Errorf("got %v and the error %v; want one with %q", entries, err, test.want)
			}
			if _, err := readSized(test.dump, -1); err == nil {
				t.Error("without its size, it is taken for a dump")
			}
		})
	}
	for version, ok := range map[string]bool{"0004": true, "0005": false} { // a checksum came with version 5
		if _, err := readAll("REDIS" + version + "\xff"); (err == nil) != ok {
			t.Errorf("version %s without a checksum: %v", version, err)
		}
	}
	if _, err := readAll("RED"); !errors.Is(err, ErrNotADump) {
		t.Error(err)
	}
}

// A length that the file does not have makes the reader allocate next to nothing, also if the size of
// the file is not known. The test counts what the process allocates, so it is not parallel.
func TestBadLengthsAllocateNothing(t *testing.T) {
	const bound = 1 << 18 // the reader's buffer has a quarter of it
	for name, test := range badDumps {
		for _, size := range []int64{int64(len(test.dump)), -1} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := readSized(test.dump, size)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; err == nil || got > bound {
				t.Errorf("%s, size %d: it allocates %d bytes; want at most %d (error: %v)", name, size, got, bound, err)
			}
		}
	}
}

// What is longer than is wanted is read over, compressed or not, and the keys behind it are read. It
// allocates next to nothing, so the test is not parallel.
func TestTooLong(t *testing.T) {
	const most, huge = 1000, 200 << 20
	reference := "\xe0\xff\x00" // 264 times the byte before it
	packed := "\x00x" + strings.Repeat(reference, huge/264)
	size := uint64(1 + huge/264*264)
	for name, test := range map[string]struct {
		key, value string
		tooLong    uint64
	}{
		"at the bound":             {str("k"), str(strings.Repeat("x", most)), 0},
		"one byte above":           {str("k"), str(strings.Repeat("x", most+1)), most + 1},
		"compressed, at the bound": {str("k"), lzf(most, "\x00x"+strings.Repeat(reference, 3)+"\xe0\xc6\x00"), 0},
		"compressed, above":        {str("k"), lzf(size, packed), size},
		"a key at the bound":       {str(strings.Repeat("k", most)), str("v"), 0},
		"a key above":              {str(strings.Repeat("k", most+1)), str("v"), most + 1},
		"a compressed key above":   {lzf(size, packed), str("v"), size},
	} {
		dump := header + "\x00" + test.key + test.value + "\x00" + str("next") + str("v") + end
		for _, o := range []Options{{Size: int64(len(dump)), Most: most}, {Size: -1, Most: most}} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var entries []Entry
			for e, err := range Read(strings.NewReader(dump), o) {
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				entries = append(entries, e)
			}
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 1<<18 {
				t.Errorf("%s: it allocates %d bytes", name, got)
			}
			if len(entries) != 2 || string(entries[1].Key) != "next" || entries[0].TooLong != test.tooLong {
				t.Fatalf("%s: %.200v", name, entries)
			}
			if e := entries[0]; test.tooLong > 0 && e.Value != nil || test.tooLong == 0 && (len(e.Value) == 0 || len(e.Key) == 0) {
				t.Errorf("%s: a key of %d bytes, a value of %d bytes", name, len(e.Key), len(e.Value))
			}
		}
	}
}

// A reader that does not want more keys gets none.
func TestReadStops(t *testing.T) {
	t.Parallel()
	dump := header + strings.Repeat("\x00"+str("k")+str("v"), 3) + end
	n := 0
	for range Read(strings.NewReader(dump), Options{Size: -1}) {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d keys", n)
	}
}

func FuzzRead(f *testing.F) {
	dump, err := os.ReadFile("testdata/redis-7.0.rdb")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(dump)
	for _, test := range badDumps {
		f.Add([]byte(test.dump))
	}
	f.Add([]byte(header + "\x00" + str("k") + lzf(9, "\x02abc\x80\x02") + "\xfc" + little(5) + "\x01" + str("l") + num(1) + str("i") + end))
	f.Fuzz(func(t *testing.T, dump []byte) {
		entries, err := readSized(string(dump), int64(len(dump)))
		held := 0
		for _, e := range entries {
			held += len(e.Key) + len(e.Value)
			if e.Type != String && e.Value != nil {
				t.Errorf("a %s has the value %q", e.Type, e.Value)
			}
		}
		if held > 88*len(dump) { // LZF makes 264 bytes of 3
			t.Errorf("%d bytes have become %d", len(dump), held)
		}
		// Without its size the same keys are read, and an error is found a little later.
		again, alsoErr := readSized(string(dump), -1)
		if !slices.EqualFunc(entries, again, func(a, b Entry) bool { return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) }) || (err == nil) != (alsoErr == nil) {
			t.Errorf("with the size: %d keys, %v; without: %d keys, %v", len(entries), err, len(again), alsoErr)
		}
	})
}
