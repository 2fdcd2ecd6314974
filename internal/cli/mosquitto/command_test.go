package mosquitto

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/mosquitto"
)

// run runs the command, and returns what it prints.
func run(args ...string) (out, messages string, err error) {
	var stdout, stderr bytes.Buffer
	cmd := NewCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(args)
	err = cmd.Execute()
	return stdout.String(), stderr.String(), err
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What the command writes is a configuration that a server takes, also at the bounds of the settings.
func TestImport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf, site := filepath.Join(dir, "mosquitto.conf"), filepath.Join(dir, "site")
	const bounds = "max_inflight_messages 0\nmax_queued_bytes 1\nmessage_size_limit 0\nmax_keepalive 65535\npersistent_client_expiration 1193046h\nsys_interval 1\npersistence_location data\nlog_type all\n"
	writeFile(t, conf, "listener 1883\nallow_anonymous true\n"+bounds+"connection up\naddress [2001:db8::1]:1\ntopic # out 2 \"\" x/\nremote_username u\nremote_password p\n")
	out, messages, err := run(conf, "--out", site)
	if err != nil || messages != "" || !strings.Contains(out, "holdfast serve --config "+filepath.Join(site, "holdfast.yaml")) {
		t.Fatalf("printed %q, %q, and failed with %v", out, messages, err)
	}
	if info, err := os.Stat(filepath.Join(site, "bridge-up.txt")); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the file with the password: %v, %v", info, err)
	}

	if _, _, err := run(conf, "--out", site); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a second time: %v", err)
	}
}

// What a file has reaches the terminal escaped, and a file that is written is never an error.
func TestImportOfAHostileFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf, site := filepath.Join(dir, "mosquitto.conf"), filepath.Join(dir, "site")
	const bounds = "max_packet_size 20\nsys_interval 2147483647\nmax_queued_bytes 9223372036854775807\n"
	writeFile(t, conf, "listener 1883\nallow_anonymous true\n\x1b[2Jevil x\nlog_type \x1b]0;title\a\n"+bounds)
	_, messages, err := run(conf, "--out", site)
	if err == nil || err.Error() != "5 lines to look at" || strings.ContainsAny(messages, "\x1b\a") || strings.Count(messages, "\n") != 5 {
		t.Errorf("printed %q, failed with %v", messages, err)
	}
	writeFile(t, conf, "listener 1883\nallow_anonymous true\nconnection a\naddress x:y:z\ntopic # out\n")
	var no exit.Negative
	if _, _, err := run(conf, "--out", filepath.Join(dir, "other")); !errors.As(err, &no) || !strings.Contains(no.Error(), "holdfast.yaml is written, and a server starts with it only when you have changed this: ") {
		t.Errorf("a bridge that the server refuses: %v", err)
	}
}

// After an error there is nothing of what was written.
func TestImportWritesAllOrNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "site")
	if err := write(dir, []mosquitto.File{{Name: "a", Content: []byte("x")}, {Name: "none/b"}}); err == nil {
		t.Error("a file was written into a directory that does not exist")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// Lines that are not converted are named, and the exit status says so.
func TestImportNamesLines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := filepath.Join(dir, "mosquitto.conf")
	writeFile(t, conf, "listener 1883\nallow_anonymous true\nmax_qos 1\n")
	_, messages, err := run(conf, "--out", filepath.Join(dir, "site"))
	if err == nil || err.Error() != "1 line to look at" || !strings.HasPrefix(messages, conf+":3: max_qos") {
		t.Errorf("printed %q, failed with %v", messages, err)
	}
	if _, _, err := run(filepath.Join(dir, "none"), "--out", filepath.Join(dir, "other")); err == nil {
		t.Error("a file that does not exist is converted")
	}
	if _, err := os.Stat(filepath.Join(dir, "other")); err == nil {
		t.Error("a directory was made for nothing")
	}
}
