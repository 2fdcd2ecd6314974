package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// needsMQTTJS gives the path of Node.js, or skips the test.
func needsMQTTJS(t *testing.T) (node string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed: MQTT.js is not tested")
	}
	if _, err := os.Stat(filepath.Join("mqttjs", "node_modules", "mqtt")); err != nil {
		t.Skip("MQTT.js is not installed (npm ci --prefix mqttjs): it is not tested")
	}
	return node
}

// MQTT.js 5 over both transports. What is tested is in mqttjs/broker.test.mjs.
func TestMQTTJS(t *testing.T) {
	t.Parallel()
	node := needsMQTTJS(t)
	s := shared(t)
	for name, url := range map[string]string{
		"TCP":       scheme("mqtt") + s.tcp,
		"WebSocket": scheme("ws") + s.ws + "/mqtt",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(deadline(t), node, "--test", "--test-reporter=spec", "broker.test.mjs")
			cmd.Dir = "mqttjs"
			cmd.WaitDelay = patience // the test runner's children may keep the pipe open after it was killed
			cmd.Env = append(os.Environ(), "BROKER_URL="+url)
			if s.tls() {
				cmd.Env = append(cmd.Env, "BROKER_SITE="+site)
			}
			if s.logins {
				cmd.Env = append(cmd.Env, "BROKER_USERNAME="+user, "BROKER_PASSWORD="+userPassword)
			}
			if s.process != nil {
				cmd.Env = append(cmd.Env, "BROKER_IS_HOLDFAST=1")
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("\n%s", out)
		})
	}
}
