package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is exported can be imported: bytes that are not UTF-8, expiry and fencing token.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	prefix := key(t) + "/"
	r := holdfast(t, "set", "-o", "json", prefix+"plain", "two \"words\"")
	token := r.field(t, "version")
	holdfast(t, "set", prefix+"fenced", "v", "--px", "1h", "--fencing-token", token).want(t, "set", 0, "", "")
	holdfastWith(t, strings.NewReader("\xff\x00\n"), "set", "-f", "-", prefix+"\xfe").want(t, "set", 0, "", "")
	exported := holdfast(t, "export", prefix+"*")
	lines := strings.Split(strings.TrimSuffix(exported.out, "\n"), "\n")
	if exported.code != 0 || len(lines) != 3 {
		t.Fatalf("status %d, %d lines: %s%s", exported.code, len(lines), exported.out, exported.err)
	}
	for i, part := range []string{`"expires":"`, `"value":"two \"words\""`, `"value_base64":"/wAK"`} {
		if !strings.Contains(lines[i], part) {
			t.Errorf("line %d: %s, want %s", i+1, lines[i], part)
		}
	}
	if !strings.Contains(lines[0], `"fencing_token":"`+token+`"`) || !strings.Contains(lines[2], `"key_base64"`) {
		t.Errorf("lines %q", lines)
	}

	holdfast(t, "del", "--fencing-token", token, prefix+"plain", prefix+"fenced", prefix+"\xfe").want(t, "del", 0, "", "")
	holdfastWith(t, strings.NewReader(exported.out), "import", "-").want(t, "import", 0, "", "3 keys written\n")
	again := strings.Split(holdfast(t, "export", prefix+"*").out, "\n")
	for i, part := range []string{`"fencing_token":"` + token + `"`, `"value":"two \"words\""`, `"value_base64":"/wAK"`} {
		if !strings.Contains(again[i], part) {
			t.Errorf("after the import, line %d: %s, want %s", i+1, again[i], part)
		}
	}
	holdfastWith(t, strings.NewReader(exported.out), "import", "--absent", "-").want(t, "import of what exists", 0, "", "0 keys written, 3 existed\n")
	holdfastWith(t, strings.NewReader(`{"key":"`+prefix+`late","value":"v","expires":"2020-01-01T00:00:00Z"}`), "import", "-").
		want(t, "import of what has expired", 0, "", "0 keys written, 1 had expired\n")
	holdfast(t, "get", prefix+"late").want(t, "get of what had expired", 1, "", "no such key")
}

// An export goes on behind the last whole line of its file, an import behind the last line
// that was acknowledged.
func TestExportAndImportResume(t *testing.T) {
	t.Parallel()
	prefix := key(t) + "/"
	for _, k := range []string{"a", "b", "c", "d"} {
		holdfast(t, "set", prefix+k, k).want(t, "set", 0, "", "")
	}
	file := filepath.Join(t.TempDir(), "keys.jsonl")
	holdfast(t, "export", "--file", file, prefix+"*").want(t, "export", 0, "", file+": 4 keys\n")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	holdfast(t, "export", "--file", file).want(t, "export over a file", 2, "", "--resume")
	for cut := range whole {
		if cut%40 != 0 {
			continue
		}
		if err := os.WriteFile(file, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if r := holdfast(t, "export", "--file", file, "--resume", prefix+"*"); r.code != 0 {
			t.Fatal(r.err)
		}
		if now, _ := os.ReadFile(file); string(now) != string(whole) {
			t.Fatalf("cut at %d: %s", cut, now)
		}
	}

	lines := strings.SplitAfter(string(whole), "\n")
	broken := strings.Join(lines[:2], "") + "nonsense\n" + lines[3]
	if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	holdfast(t, "import", "--resume", file).want(t, "nothing to resume", 2, "", "begin without --resume")
	holdfast(t, "import", file).want(t, "import of nonsense", 2, "", file+": line 3: not a line of an export")
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	holdfast(t, "import", "--resume", file).want(t, "import resumed", 0, "", "2 keys written\n")
	if left, _ := filepath.Glob(file + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestImportOfEtcd(t *testing.T) {
	t.Parallel()
	prefix := key(t) + "/"
	const etcd = `{"header":{"cluster_id":1,"revision":3},"kvs":[{"key":"S0VZ","create_revision":2,"mod_revision":2,"version":1,"value":"dg=="},` +
		`{"key":"S0VZMg==","create_revision":3,"mod_revision":3,"version":1}],"count":2}`
	if r := holdfastWith(t, strings.NewReader(etcd), "import", "--from", "etcd", "-"); r.code != 0 || r.err != "2 keys written\n" {
		t.Fatalf("status %d, %s", r.code, r.err)
	}
	holdfast(t, "get", "KEY").want(t, "get", 0, "v", "")
	holdfast(t, "get", "KEY2").want(t, "get of an empty value", 0, "", "")
	for text, want := range map[string]string{
		`{"count":0}`:                  "0 keys written\n",
		``:                             "no JSON object",
		`[]`:                           "no JSON object",
		`{"kvs":{}}`:                   "kvs is not a list",
		`{"kvs":[{"key":"S0VZ"}`:       "cut off",
		`{"kvs":[{"key":"not base"}]}`: "entry 1: ",
	} {
		if r := holdfastWith(t, strings.NewReader(text), "import", "--from", "etcd", "-"); !strings.Contains(r.err, want) {
			t.Errorf("%s: %s, want %s", text, r.err, want)
		}
	}
	for line, want := range map[string]string{
		`{"key":"K","value":"v","what":1}`:              `unknown field "what"`,
		`{"value":"v"}`:                                 "want one of key and key_base64",
		`{"key":"K","key_base64":"S0VZ"}`:               "want one of key and key_base64",
		`{"key":"K","value":"v","value_base64":"dg=="}`: "want one of value and value_base64",
		`{"key":"K","value":"v"} {}`:                    "something follows",
		`{"key":"K"}`:                                   "want one of value and value_base64",
		"{\"key\":\"K\xff\",\"value\":\"v\"}":           "not UTF-8 at byte 10: bytes that are no text are in base 64",
		`{"key":"K","value":"\ud83d"}`:                  "half of a surrogate pair",
		"{\"topic\":\"t\",\"payload\":\"\xff\"}":        "not UTF-8",
		`{"key":"K","value":"v","fencing_token":"x"}`:   "fencing_token: ",
		`{"key":"K","expires":"tomorrow"}`:              "not a line of an export",
		strings.ReplaceAll(`{"key":"P","value":"`+strings.Repeat("v", 5<<20)+`"}`, "P", prefix): "line 1, key ",
	} {
		if r := holdfastWith(t, strings.NewReader(line), "import", "-"); r.code != 2 || !strings.Contains(r.err, want) {
			t.Errorf("%.80s: status %d, %s, want %s", line, r.code, r.err, want)
		}
	}
}
