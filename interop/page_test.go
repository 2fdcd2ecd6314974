package interop

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program of docs/azure-sdks.md runs with the variables that the page sets.
func TestAzureSDKsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "azure-sdks.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := func(language string) string {
		t.Helper()
		_, after, found := strings.Cut(string(page), "\n```"+language+"\n")
		code, _, ends := strings.Cut(after, "\n```\n")
		if !found || !ends {
			t.Fatalf("the page has no block of %s", language)
		}
		return code
	}
	s := ownServerWith(t)
	host, port, err := net.SplitHostPort(s.tcp)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "page")
	if err := os.WriteFile(source, []byte(block("go")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("the program of the page: %v\n%s", err, out)
	}
	script := block("sh") + "\nexport AIO_BROKER_HOSTNAME=" + host + " AIO_BROKER_TCP_PORT=" + port + "\n"
	if site != "" {
		script += "export AIO_MQTT_USE_TLS=true AIO_TLS_CA_FILE=" + siteFile("ca.crt") +
			" AIO_TLS_CERT_FILE=" + siteFile("admin.crt") + " AIO_TLS_KEY_FILE=" + siteFile("admin.key") + "\n"
	}
	cmd := exec.CommandContext(deadline(t), "sh", "-ec", script+`exec "$0"`, program)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "press/mode is auto\n") {
		t.Errorf("the program of the page: %v, it prints\n%s", err, out)
	}
}
