package txn

import (
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client/txn"
)

func TestDocumentsThatAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[]`:                     "not the JSON",
		`{"iff": []}`:            `unknown field "iff"`,
		`{}{}`:                   "more than one transaction",
		`{"if": [{}]}`:           "if, item 1: key is missing",
		`{"if": [{"key": "k"}]}`: "if, item 1: give exactly one of",
		`{"if": [{"key": "k", "exists": true, "value": ""}]}`:                               "if, item 1: give exactly one of",
		`{"if": [{"key": "k", "key_base64": "aw==", "exists": true}]}`:                      "key and key_base64 exclude each other",
		`{"if": [{"key": "k", "version": "soon"}]}`:                                         `if, item 1: version "soon"`,
		`{"then": [{"set": "k", "value": ""}, {}]}`:                                         "then, item 2: give one of set and del",
		`{"then": [{"set": "k", "del": "k"}]}`:                                              "then, item 1: give one of set and del",
		`{"then": [{"set": "k"}]}`:                                                          "value is missing",
		`{"then": [{"del": "k", "value": "v"}]}`:                                            "del has neither value nor px",
		`{"then": [{"set": "k", "value": "v", "px": "-1s"}]}`:                               `px "-1s": want a positive duration`,
		`{"then": [{"del": "k", "fencing_token": "x"}]}`:                                    `fencing_token "x"`,
		`{"publish": [{"payload": "p"}]}`:                                                   "publish, item 1: topic is missing",
		`{"publish": [{"topic": "t"}]}`:                                                     "publish, item 1: payload is missing",
		`{"publish": [{"topic": "t", "payload": "", "qos": 3}]}`:                            "qos 3: want 0, 1 or 2",
		`{"publish": [{"topic": "t", "payload": "", "expiry": "010s"}]}`:                    `expiry "010s": want a positive duration`,
		`{"publish": [{"topic": "t", "payload": "", "expiry": "0s"}]}`:                      `expiry "0s": want a positive duration`,
		`{"cancel": ["a", ""]}`:                                                             "cancel, item 2: the ID of the timer has 0 bytes",
		`{"once": {"key": "k"}}`:                                                            "once, item 1: message_id is missing",
		`{"once": {"message_id": "m"}}`:                                                     "once, item 1: key is missing",
		`{"once": {"key": "k", "message_id": "m", "keep": "forever"}}`:                      `keep "forever"`,
		`{"once": {"key": "k", "message_id": "m", "digest": "d", "digest_base64": "ZA=="}}`: "digest and digest_base64 exclude each other",
		`{"cancel": ["` + strings.Repeat("t", 257) + `"]}`:                                  "cancel, item 1: the ID of the timer has 257 bytes: it must have 1 to 256",
		`{"publish": [{"topic": "t", "payload": "", "expiry": "1193046h28m16s"}]}`:          `publish, item 1: expiry "1193046h28m16s": want at most 4294967295 seconds`,

		`{}`: "the transaction is empty", `null`: "the transaction is empty", `{"then": []}`: "the transaction is empty",

		// Only the last would count.
		`{"then": [{"set": "a", "value": "1"}], "then": [{"set": "b", "value": "1"}]}`: `the field "then" is there twice`,
		`{"once": {"key": "k", "message_id": "m"}, "Once": null}`:                      `the field "Once" is there twice`,
		`{"then": [{"del": "a"}, {"set": "a", "value": "1", "set": "b"}]}`:             `then, item 2: the field "set" is there twice`,
		`{"once": {"key": "k", "message_id": "m", "\u006bey": "l"}}`:                   `once, item 1: the field "key" is there twice`,
		// A user property is a name and a value.
		`{"publish": [{"topic": "t", "payload": "", "user": [["n", "v"], ["n"]]}]}`: "publish, item 1: user, pair 2: want two strings",
		`{"publish": [{"topic": "t", "payload": "", "user": [["n", "v", "w"]]}]}`:   "publish, item 1: user, pair 1: want two strings",
		`{"publish": [{"topic": "t", "payload": "", "user": [["n", null]]}]}`:       "publish, item 1: user, pair 1: want two strings",
		`{"publish": [{"topic": "t", "payload": "", "user": [null]}]}`:              "publish, item 1: user, pair 1: want two strings",

		"{\"then\": [{\"set\": \"k\xff\", \"value\": \"v\"}]}": "not UTF-8 at byte 21",
		`{"then": [{"set": "k", "value": "\ud800"}]}`:          "is half of a surrogate pair",

		"{\n \"if\": [,]}":                 "line 2, column 9: invalid character ','",
		`{"if": {}}`:                       "if must not be a JSON object",
		`{"if": [5]}`:                      "if, item 1: a JSON number",
		`{"if": [{"key": 5}]}`:             "if, item 1: key must not be a JSON number",
		`{"then": [{"set": "k", "x": 1}]}`: `then, item 1: json: unknown field "x"`,
		`{"once": 5}`:                      "once, item 1: a JSON number",
		`{"once": [{"key": "k", "message_id": "m"}, {"key": "k", "message_id": "", "keep": "1h"}]}`:         "once, item 2: message_id has 0 bytes",
		`{"once": [{"key": "k", "message_id": "` + strings.Repeat("m", 1025) + `"}]}`:                       "once, item 1: message_id has 1025 bytes: it must have 1 to 1024",
		`{"once": [{"key": "k", "message_id": "m", "context": "c", "digest": "d"}]}`:                        "once, item 1: context and digest exclude each other",
		`{"once": [{"key": "k", "message_id": "m", "digest": ""}]}`:                                         "once, item 1: digest has 0 bytes",
		`{"once": [{"key": "k", "message_id": "m", "digest": "` + strings.Repeat("d", 65) + `"}]}`:          "once, item 1: digest has 65 bytes: it must have 1 to 64",
		`{"once": [{"key": "k", "message_id": "m", "message_id_base64": "bQ=="}]}`:                          "message_id and message_id_base64 exclude each other",
		`{"if": [{"key": "k", "made_by": "m", "made_by_base64": "bQ=="}]}`:                                  "made_by and made_by_base64 exclude each other",
		`{"publish": [{"topic": "t", "payload": ""}, {"topic": "t", "payload": "", "user": [["n"], "v"]}]}`: "publish, item 2: user must not be a JSON string",
	} {
		doc, err := parse([]byte(text))
		if err == nil {
			err = doc.build(txn.New(nil))
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
