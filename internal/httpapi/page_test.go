package httpapi_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// The commands of docs/http-api.md print what it says, in which … stands for any text.
func TestExamplesOfThePage(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s here", program)
		}
	}
	page, err := os.ReadFile("../../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	a := start(t)
	runs := 0
	for i, block := range strings.Split(string(page), "```console\n")[1:] {
		if i == 3 { // those about a client
			mqtttest.Connect(t, a.Addr, mqtttest.Persistent("press/7"), mqtttest.SessionExpiry(3600), mqtttest.KeepAlive(60)).Subscribe("plant/+/mode", 1)
		}
		block, _, _ = strings.Cut(block, "```")
		for _, part := range strings.Split("\n"+block, "\n$ ")[1:] {
			command, want, _ := strings.Cut(part, "\n")
			command = strings.ReplaceAll(command, "127.0.0.1:9090", a.AdminAddr().String())
			cmd := exec.CommandContext(t.Context(), "bash", "-c", command)
			cmd.Env = append(os.Environ(), "no_proxy=127.0.0.1")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", command, err, out)
			}
			runs++
			pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want)), "…", ".*")
			if got := strings.TrimSpace(string(out)); !regexp.MustCompile("^" + pattern + "$").MatchString(got) {
				t.Errorf("%s\nprinted %s\nwant    %s", command, got, want)
			}
			if strings.Contains(command, "-X DELETE") && strings.Contains(want, `"disconnected":true`) {
				awaitAway(t, a, "press/7")
			}
		}
	}
	if runs < 10 {
		t.Errorf("%d commands of the page were run, there are more", runs)
	}
}
