package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// skipWithoutChroot skips a test that runs programs in another root directory, as another user:
// only root may, and a container can forbid it to root, too.
func skipWithoutChroot(t *testing.T) {
	t.Helper()
	cmd := exec.Command(programOf(t, "true"))
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: "/", Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	if err := cmd.Run(); err != nil {
		t.Skipf("no program can be run in another root directory here (%v): it is not tried", err)
	}
}

// testImage runs the image's files, by its user and its commands, in a root directory that
// has nothing else, as a container does.
func testImage(t *testing.T, program string) {
	skipWithoutChroot(t)
	i := readDockerfile(t)
	root := t.TempDir()
	copyFile(t, program, filepath.Join(root, "holdfast"), 0o755)
	copyFile(t, filepath.Join(checkout, "deploy/docker/holdfast.yaml"), filepath.Join(root, "etc/holdfast/holdfast.yaml"), 0o644)
	if err := os.Mkdir(filepath.Join(root, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	const uid = 65532
	if i.user != "65532:65532" {
		t.Fatalf("the image's user is %s", i.user)
	}
	if err := os.Chown(filepath.Join(root, "data"), uid, uid); err != nil {
		t.Fatal(err)
	}
	inside := func(args ...string) *exec.Cmd {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = "/"
		cmd.Env = []string{"HOLDFAST_ALLOW_ANONYMOUS=true", "HOLDFAST_LISTEN=127.0.0.1:0"} // a free port, as the tests share a network
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd
	}
	check := i.health[1:]
	if out, err := inside(check...).CombinedOutput(); err == nil {
		t.Errorf("without a server %q says %s", check, out)
	}
	p := testserver.Launch(t, append([]string{"env", "-i", "HOLDFAST_ALLOW_ANONYMOUS=true", "HOLDFAST_LISTEN=127.0.0.1:0", programOf(t, "chroot"), "--userspec=" + i.user, root}, slices.Concat(i.entrypoint, i.cmd)...)...)
	if p.Addr == "" {
		t.Fatalf("the server did not start:\n%s", p.Output())
	}
	if out, err := inside(check...).CombinedOutput(); err != nil || string(out) != "ready\n" {
		t.Errorf("%q: %v, %s", check, err, out)
	}
	if status := p.Stop(); status != 0 {
		t.Errorf("it ended with status %d", status)
	}
}

// The server runs with the configuration of the manifests, on certificates in place of the
// secret's, and answers their probes.
func TestKubernetesConfiguration(t *testing.T) {
	t.Parallel()
	m := readManifests(t, oneServer)
	dir := t.TempDir()
	site := filepath.Join(dir, "site")
	if out, err := exec.Command(testserver.Binary(), "init", site).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, port, err := net.SplitHostPort(testserver.FreeAddress())
	if err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("/secrets/tls/tls.crt", filepath.Join(site, "server.crt"), "/secrets/tls/tls.key", filepath.Join(site, "server.key"),
		"/secrets/tls/ca.crt", filepath.Join(site, "ca.crt"), "0.0.0.0:8883", "127.0.0.1:0", "0.0.0.0:9090", "0.0.0.0:"+port, "data: /data", "data: "+filepath.Join(dir, "data"))
	for name, text := range m.config.Data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(here.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := testserver.Launch(t, testserver.Binary(), "serve", "--config", filepath.Join(dir, "holdfast.yaml"))
	if p.Addr == "" {
		t.Fatalf("the server did not start:\n%s", p.Output())
	}
	set := exec.Command(testserver.Binary(), "set", "k", "v", "-n", "127.0.0.1", "-p", p.Addr[strings.LastIndex(p.Addr, ":")+1:], "--cafile", filepath.Join(site, "ca.crt"), "--certfile", filepath.Join(site, "admin.crt"), "--keyfile", filepath.Join(site, "admin.key"))
	if out, err := set.CombinedOutput(); err != nil {
		t.Errorf("%v: %v\n%s", set.Args, err, out)
	}
	kubelet := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} // as it does not know the authority
	c := m.set.Spec.Template.Spec.Containers[0]
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		url := strings.ToLower(string(probe.HTTPGet.Scheme)) + "://127.0.0.1:" + port + probe.HTTPGet.Path
		response, err := kubelet.Get(url)
		if err != nil {
			t.Error(err)
			continue
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", url, response.Status)
		}
	}
}
