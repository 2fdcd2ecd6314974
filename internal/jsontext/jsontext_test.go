package jsontext

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``: "", `"a"`: "", `"caf\u00e9 ` + "é\ufffd" + `"`: "", `"\ud83d\ude00\uD83D\uDE00"`: "", `"\\ud800"`: "", `"\ufffd\"\\"`: "",
		"\"ab\xff\"":          "not UTF-8 at byte 4",
		"\"\xed\xa0\x80\"":    "not UTF-8 at byte 2", // a surrogate as UTF-8 would have it
		`"a\ud800"`:           `\ud800 at byte 3 is half`,
		`"\ude00\ud83d"`:      `\ude00 at byte 2 is half`,
		`"\ud83d\u0041"`:      `\ud83d at byte 2 is half`,
		`"\ud83d\n"`:          `\ud83d at byte 2 is half`,
		`"\\\uDFFF"`:          `\uDFFF at byte 4 is half`,
		`"\ud83d\ude00\ud83d`: `\ud83d at byte 14 is half`,
	} {
		err := Check([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// A JSON string that Check lets pass is read without a replacement, and one that it does not is not.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{`a`, `\ud83d\ude00`, `\ud800`, "\xff", `\\ud800`, `\ud800\\udc00`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text := []byte(`"` + s + `"`)
		err := Check(text)
		var read string
		if json.Unmarshal(text, &read) != nil {
			return // no JSON: nothing is said of it
		}
		replaced := strings.Count(read, "\ufffd") > strings.Count(s, "\ufffd")+strings.Count(strings.ToLower(s), `\ufffd`)
		if replaced && err == nil {
			t.Errorf("%q is read as %q, and nothing is said of it", s, read)
		}
		if err != nil && !strings.Contains(read, "\ufffd") {
			t.Errorf("%q is read as %q: %v", s, read, err)
		}
	})
}
