package interop

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/mqtt"
	"github.com/Azure/iot-operations-sdks/go/mqtt/auth"
)

// runProgram runs a program to its end, which must be a good one.
func runProgram(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(deadline(t), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
}

func needMosquittoPasswd(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("mosquitto_passwd"); err != nil {
		t.Skip("mosquitto_passwd is not installed (Debian: mosquitto): its files are not tested")
	}
}

// login publishes with Mosquitto's client, and says how that ended.
func (m mosquitto) login(t *testing.T, user, password string) error {
	t.Helper()
	out, err := m.command(t, "mosquitto_pub", "-t", "a", "-m", "x", "-q", "1", "-u", user, "-P", password).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// A password file that both programs have edited lets Mosquitto's clients into our server
// and into Mosquitto.
func TestPasswordFileOfMosquitto(t *testing.T) {
	needMosquittoPasswd(t)
	file := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runProgram(t, "mosquitto_passwd", "-b", file, "pbkdf2", "one")
	runProgram(t, "mosquitto_passwd", "-b", "-H", "sha512", file, "sha512", "two")
	runProgram(t, binary, "passwd", file, "ours", "-b", "three")
	runProgram(t, binary, "passwd", file, "gone", "-b", "four")
	runProgram(t, "mosquitto_passwd", "-b", file, "last", "five") // which reads and writes the file again
	runProgram(t, "mosquitto_passwd", "-D", file, "gone")
	runProgram(t, binary, "passwd", file, "pbkdf2", "-b", "changed")
	users := map[string]string{"pbkdf2": "changed", "sha512": "two", "ours": "three", "last": "five"}

	brokers := map[string]*server{"holdfast": ownServerWith(t, "--password-file", file), "Mosquitto": startMosquitto(t, file, "allow_anonymous false")}
	for name, s := range brokers {
		for _, version := range mosquittoVersions {
			m := newMosquitto(t, s, version)
			for user, password := range users {
				if err := m.login(t, user, password); err != nil {
					t.Errorf("%s, %s: %s is refused: %v", name, version, user, err)
				}
			}
			for user, password := range map[string]string{"pbkdf2": "one", "gone": "four", "ours": ""} {
				if m.login(t, user, password) == nil {
					t.Errorf("%s, %s: %s is let in with the password %q", name, version, user, password)
				}
			}
		}
	}
}

// startMosquitto runs a Mosquitto broker with a password file, and with more lines in its
// configuration.
func startMosquitto(t *testing.T, passwords string, lines ...string) *server {
	t.Helper()
	address := steadyAddress(t)
	_, port, _ := net.SplitHostPort(address)
	config := filepath.Join(t.TempDir(), "mosquitto.conf")
	text := fmt.Sprintf("listener %s 127.0.0.1\nuser root\npassword_file %s\n%s\n", port, passwords, strings.Join(lines, "\n"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return serveMosquitto(t, config, address)
}

// serveMosquitto runs a Mosquitto broker with a configuration by which it listens on an address.
func serveMosquitto(t *testing.T, config, address string) *server {
	t.Helper()
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		path = "/usr/sbin/mosquitto"
	}
	out := &output{changed: make(chan struct{}, 1)}
	cmd := exec.Command(path, "-v", "-c", config)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Skipf("mosquitto cannot be run (Debian: mosquitto): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("last output of Mosquitto:\n%s", out.tail())
		}
	})
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return &server{tcp: address, output: out}
		}
		if time.Since(began) > patience {
			t.Fatalf("Mosquitto does not listen: %v", err)
		}
	}
}

// The SDK works with a user name and a password.
func TestSDKWithAPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	runProgram(t, binary, "passwd", file, "sdk", "-b", "secret")
	s := ownServerWith(t, "--password-file", file)
	c := connectSDKWith(t, s, sdkOptions{session: []mqtt.SessionClientOption{
		mqtt.WithUsername(mqtt.ConstantUsername("sdk")), mqtt.WithPassword(mqtt.ConstantPassword([]byte("secret"))),
	}})
	c.set(t, "greeting", "hello")
	if value, _ := c.get(t, "greeting"); value != "hello" {
		t.Errorf("got %q", value)
	}
}

// The SDK works with the token of a Kubernetes service account, and authenticates again
// when the token's file gets another one.
func TestSDKWithAServiceAccountToken(t *testing.T) {
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	keys, file, audit := filepath.Join(dir, "keys.pem"), filepath.Join(t.TempDir(), "token"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(keys, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(lives time.Duration) {
		encode := base64.RawURLEncoding.EncodeToString
		signed := encode([]byte(`{"alg":"EdDSA","typ":"JWT"}`)) + "." + encode(fmt.Appendf(nil,
			`{"iss":"https://kubernetes.default.svc","aud":["holdfast"],"sub":"system:serviceaccount:plant:app","exp":%d,"kubernetes.io":{"namespace":"plant"}}`, time.Now().Add(lives).Unix()))
		token := signed + "." + encode(ed25519.Sign(private, []byte(signed)))
		if err := os.WriteFile(file+".new", []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(time.Hour)
	s := ownServerWith(t, "--jwt-keys", keys, "--jwt-issuer", "https://kubernetes.default.svc", "--jwt-audience", "holdfast", "--audit-log", audit)
	provider, err := auth.NewAIOServiceAccountToken(file)
	if err != nil {
		t.Fatal(err)
	}
	c := connectSDKWith(t, s, sdkOptions{session: []mqtt.SessionClientOption{mqtt.WithAuth(provider)}})
	c.set(t, "greeting", "hello")
	write(2 * time.Hour)
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		lines, err := os.ReadFile(audit)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(lines), `"event":"re-authenticated"`) {
			if n := strings.Count(string(lines), `"event":"connected"`); n != 1 {
				t.Errorf("it has connected %d times, want once:\n%s", n, lines)
			}
			break
		}
		if time.Since(began) > patience {
			t.Fatalf("the SDK does not authenticate again:\n%s", lines)
		}
	}
	if value, _ := c.get(t, "greeting"); value != "hello" {
		t.Errorf("got %q", value)
	}
}
