package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// filled is a data directory as a server leaves it that was killed, with one of
// everything.
func filled(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewCrashableMem()
	s := startOn(t, journaltest.NewDisk(fs))
	fill(t, s.Addrs()[0].String())
	left := fs.CrashClone(vfs.CrashCloneCfg{})
	return left
}

// fill writes 5 keys, 2 remembered messages, 2 sessions with 3 subscriptions between them, 4 queued
// messages, 2 retained ones, a will and half a QoS 2 publish.
func fill(t *testing.T, addr string) {
	t.Helper()
	type message = mqtttest.Message
	publisher := mqtttest.Connect(t, addr, mqtttest.Persistent("publisher"), mqtttest.Will(message{Topic: "will", Payload: "w", QoS: 1}, 60))
	reply := "replies"
	stamp := [][2]string{{"__ts", "1:0:client"}}
	for i := range 3 {
		payload := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$2\r\nk%d\r\n$5\r\nvalue\r\n", i)
		correlation := "c"
		publisher.Publish(message{Topic: protocol.InvokeTopic, Payload: payload, QoS: 1, ResponseTopic: &reply, CorrelationData: &correlation, User: stamp})
	}
	for _, args := range []string{"$5\r\nSTORE\r\n$1\r\ns\r\n$5\r\nstate\r\n$2\r\nm1\r\n$1\r\n-\r\n", "$5\r\nSTORE\r\n$1\r\nt\r\n$5\r\nstate\r\n$2\r\nm1\r\n$1\r\n-\r\n"} {
		correlation := "c"
		publisher.Publish(message{Topic: protocol.InvokeTopic, Payload: "*5\r\n" + args, QoS: 1, ResponseTopic: &reply, CorrelationData: &correlation, User: stamp})
	}
	for _, id := range []string{"one", "two"} {
		c := mqtttest.Connect(t, addr, mqtttest.Persistent(id))
		c.Subscribe("both", 1)
		if id == "one" {
			c.Subscribe("single/#", 2)
		}
		c.Disconnect()
		c.AwaitEnd()
	}
	publisher.Publish(message{Topic: "both", Payload: "in two queues", QoS: 1})
	publisher.Publish(message{Topic: "single/1", Payload: "in one", QoS: 2})
	publisher.Publish(message{Topic: "single/2", Payload: "in one", QoS: 1, Retain: true})
	publisher.Publish(message{Topic: "retained", Payload: "kept", QoS: 1, Retain: true})
	id := publisher.SendPublish(message{Topic: "half", QoS: 2})
	publisher.AwaitAck(mqtt.PUBREC, id)
}

const filledWith = "5 keys (33 bytes), 3 sessions, 3 subscriptions, 4 queued messages, 2 retained messages, 1 wills, 2 remembered messages, 1 inflight QoS 2 publishes"

func checkOf(t *testing.T, fs vfs.FS) *Report {
	t.Helper()
	r, err := Check(Config{DataDir: "data", FS: fs}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCheckOfASoundDirectory(t *testing.T) {
	t.Parallel()
	fs := filled(t)
	before, _ := fs.List("data")
	r := checkOf(t, fs)
	if !r.Sound() || r.String() != filledWith {
		t.Errorf("problems %q\ngot  %s\nwant %s", r.Problems, r, filledWith)
	}
	if after, _ := fs.List("data"); len(after) > len(before)+1 { // but for the lock
		t.Errorf("it has written: before %q, after %q", before, after)
	}
	// It is as good when it has been opened, and so in tables, and when it was stopped.
	s := startOn(t, journaltest.NewDisk(fs))
	if err := s.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if r := checkOf(t, fs); !r.Sound() || r.String() != filledWith {
		t.Errorf("after a restart: problems %q\ngot  %s\nwant %s", r.Problems, r, filledWith)
	}
}

func TestCheckNamesRowsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, value, problem string }{
		{"k|broken", "\x09", `key "broken": it ends too early`},
		{"k|later", "\x01\x00\xff\xff\xff\xff\xff\xff\x01\x01\x01n", `key "later" has version`},
		{"r|\x01km", "\x09", `remembered message "\x01km": it ends too early`},
		{"x|\x00\x00\x00\x00\x00\x00\x00\x01\x01km", "", "2 messages are remembered, and there are deadlines for 3"},
		{"s|client", "\x01", `session with key "client"`},
		{"t|topic", "\x02\x00", `retained message with key "topic"`},
		{"w|12345678", "\x01", `will with key "12345678"`},
		{"p|12345678", "\x07", `message with key "12345678"`},
		{"q|1234567812345678", "\x01\x80\x00\x0012345678", "its message 3544952156018063160 is missing"},
		{"g|group/filter", "", `shared subscription with key "group/filter"`},
	} {
		t.Run(c.key[:1], func(t *testing.T) {
			t.Parallel()
			fs := filled(t)
			j, err := journal.Open(journal.Options{Dir: "data", FS: fs, Logger: logger(Config{})})
			if err != nil {
				t.Fatal(err)
			}
			a := j.Begin()
			a.Set([]byte(c.key), []byte(c.value))
			a.End(nil)
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			r := checkOf(t, fs)
			if len(r.Problems) != 1 || !strings.Contains(r.Problems[0], c.problem) {
				t.Errorf("problems %q, want one with %q", r.Problems, c.problem)
			}
		})
	}
}

func TestCheckNamesDamagedFiles(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{".journal", ".sst", "MANIFEST"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			fs := filled(t)
			s := startOn(t, journaltest.NewDisk(fs)) // writes tables of what the log had
			fill(t, s.Addrs()[0].String())
			if kind == ".sst" || kind == "MANIFEST" {
				if err := s.journal.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Shutdown(context.Background()); err != nil {
				t.Fatal(err)
			}
			name := flipIn(t, fs, kind)
			r := checkOf(t, fs)
			if r.Sound() || !strings.Contains(strings.Join(r.Problems, "\n"), strings.TrimSuffix(name, ".sst")) {
				t.Errorf("problems %q, want %s named", r.Problems, name)
			}
		})
	}
}

// flipIn flips a bit in the middle of the largest file of a kind.
func flipIn(t *testing.T, fs *vfs.MemFS, kind string) (name string) {
	t.Helper()
	names, _ := fs.List("data")
	var size int64
	for _, n := range names {
		if info, err := fs.Stat("data/" + n); err == nil && strings.Contains(n, kind) && info.Size() > size {
			name, size = n, info.Size()
		}
	}
	if name == "" {
		t.Fatalf("there is no %s in %q", kind, names)
	}
	f, err := fs.OpenReadWrite("data/"+name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, size)
	if _, err := f.ReadAt(content, 0); err != nil {
		t.Fatal(err)
	}
	at := int64(len(bytes.TrimRight(content, "\x00")) / 3) // a log has zeros ahead
	b := []byte{content[at] ^ 4}
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	f.Close()
	return name
}

func TestCheckOfADirectoryInUse(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	startOn(t, disk)
	if _, err := Check(Config{DataDir: "data", FS: disk}, nil); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("Check: %v", err)
	}
	if _, err := Check(Config{DataDir: "elsewhere", FS: disk}, nil); err == nil || !strings.Contains(err.Error(), "no data directory") {
		t.Errorf("Check of nothing: %v", err)
	}
}
