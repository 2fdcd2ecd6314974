package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// What these files describe cannot run here: there is no Docker, Kubernetes or systemd. So
// they are parsed and linted by the code of those, and the commands and settings in them
// run or are read by the built program.

func TestMain(m *testing.M) { testserver.Main(m) }

const checkout = "../.."

// image is what the Dockerfile makes: the last stage.
type image struct {
	base, user         string
	entrypoint, cmd    []string
	health             []string
	copied             []string // from the checkout
	volumes, exposures []string
}

func readDockerfile(t *testing.T) (i image) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(checkout, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range parsed.Warnings {
		t.Errorf("Dockerfile: %+v", w)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, description, _, message string, at []parser.Range) {
		t.Errorf("Dockerfile: %s: %s (%s) %v", rule, message, description, at)
	}})
	stages, _, err := instructions.Parse(parsed.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	last := stages[len(stages)-1]
	i.base = last.BaseName
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			i.user = c.User
		case *instructions.EntrypointCommand:
			i.entrypoint = c.CmdLine
		case *instructions.CmdCommand:
			i.cmd = c.CmdLine
		case *instructions.HealthCheckCommand:
			i.health = c.Health.Test
		case *instructions.VolumeCommand:
			i.volumes = append(i.volumes, c.Volumes...)
		case *instructions.ExposeCommand:
			i.exposures = append(i.exposures, c.Ports...)
		case *instructions.CopyCommand:
			if c.From == "" {
				i.copied = append(i.copied, c.SourcePaths...)
			}
		}
	}
	return i
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	i := readDockerfile(t)
	if i.base != "scratch" {
		t.Errorf("the image is made from %s, want scratch", i.base)
	}
	if uid, _, _ := strings.Cut(i.user, ":"); !isNumber(uid) || uid == "0" {
		t.Errorf("it runs as %q: want a number that is not 0, as Kubernetes can judge only numbers", i.user)
	}
	if !slices.Equal(i.health, []string{"CMD", "/holdfast", "health", "--data", "/data"}) {
		t.Errorf("its health check is %q", i.health)
	}
	if !slices.Equal(i.volumes, []string{"/data"}) || !slices.Equal(i.exposures, []string{"1883"}) {
		t.Errorf("volumes %q, ports %q", i.volumes, i.exposures)
	}
	for _, from := range i.copied {
		if _, err := os.Stat(filepath.Join(checkout, from)); err != nil {
			t.Errorf("it copies %s: %v", from, err)
		}
	}
}

func isNumber(s string) bool { _, err := strconv.Atoi(s); return err == nil }

func TestCompose(t *testing.T) {
	t.Parallel()
	options, err := cli.NewProjectOptions([]string{filepath.Join(checkout, "deploy", "compose.yaml")}, cli.WithConsistency(true), cli.WithInterpolation(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := cli.ProjectFromOptions(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	s, err := project.GetService("holdfast")
	if err != nil {
		t.Fatal(err)
	}
	i := readDockerfile(t)
	if got := []string(s.HealthCheck.Test); !slices.Equal(got, i.health) {
		t.Errorf("its health check is %q, that of the image %q", got, i.health)
	}
	for _, p := range s.Ports {
		if p.HostIP != "127.0.0.1" && s.Environment["HOLDFAST_ALLOW_ANONYMOUS"] != nil {
			t.Errorf("port %d is published on %q, and clients need not prove who they are", p.Target, p.HostIP)
		}
		if !slices.Contains(i.exposures, strconv.Itoa(int(p.Target))) {
			t.Errorf("port %d is none of the image's: %q", p.Target, i.exposures)
		}
	}
	for _, v := range s.Volumes {
		if !slices.Contains(i.volumes, v.Target) {
			t.Errorf("volume at %s; the image has %q", v.Target, i.volumes)
		}
	}
	if context, err := filepath.Abs(checkout); err != nil || s.Build.Context != context {
		t.Errorf("it is built of %s, want %s (%v)", s.Build.Context, context, err)
	}
}

// Each node of the compose file is one of the cluster's, has the health check of the image and
// is reached on loopback only; the program accepts its settings, and makes the certificates.
func TestComposeCluster(t *testing.T) {
	t.Parallel()
	options, err := cli.NewProjectOptions([]string{filepath.Join(checkout, "deploy", "compose-cluster.yaml")}, cli.WithConsistency(true), cli.WithInterpolation(true), cli.WithProfiles([]string{"certificates"}))
	if err != nil {
		t.Fatal(err)
	}
	project, err := cli.ProjectFromOptions(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	i, names := readDockerfile(t), []string{"a", "b", "c"}
	authority, err := project.GetService("authority")
	if err != nil || len(authority.Volumes) != 1 || !slices.Contains(i.volumes, authority.Volumes[0].Target) {
		t.Fatalf("the authority writes to %+v, which is no volume of the image, so its user cannot (%v)", authority.Volumes, err)
	}
	dir := t.TempDir()
	in := func(path string) string { return strings.Replace(path, authority.Volumes[0].Target, dir, 1) }
	run := func(environment []string, args ...string) {
		t.Helper()
		cmd := exec.Command(testserver.Binary(), args...)
		cmd.Env = append(os.Environ(), environment...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	run(nil, authority.Command[0], in(authority.Command[1]))
	for _, name := range names {
		s, err := project.GetService(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := []string(s.HealthCheck.Test); !slices.Equal(got, i.health) {
			t.Errorf("%s: its health check is %q, that of the image %q", name, got, i.health)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" || !slices.Contains(i.exposures, strconv.Itoa(int(p.Target))) {
				t.Errorf("%s: port %d is published on %q", name, p.Target, p.HostIP)
			}
		}
		run(nil, "cert", "node", name, "--ca", in("/data/nodes"), "--out", in("/data/"+name))
		environment := []string{"HOLDFAST_LISTEN=0.0.0.0:1883"}
		for key, value := range s.Environment {
			environment = append(environment, key+"="+strings.ReplaceAll(*value, "/certs/", dir+"/"))
		}
		for _, key := range []string{"HOLDFAST_CLUSTER_CERT", "HOLDFAST_CLUSTER_KEY", "HOLDFAST_CLUSTER_CA"} {
			file := strings.Replace(*s.Environment[key], "/certs/", dir+"/", 1)
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s: %v", name, key, err)
			}
		}
		if s.Hostname != name || !strings.Contains(*s.Environment["HOLDFAST_CLUSTER_PEERS"], name+"="+name+":") {
			t.Errorf("%s: its host is %q, and the peers are %s", name, s.Hostname, *s.Environment["HOLDFAST_CLUSTER_PEERS"])
		}
		run(environment, "config")
	}
}

// manifests are the objects of a file of deploy/kubernetes.
type manifests struct {
	config  corev1.ConfigMap
	service corev1.Service
	set     appsv1.StatefulSet
	nodes   corev1.Service // by which the nodes of a cluster reach each other
	budget  policyv1.PodDisruptionBudget
}

// readManifests decodes them strictly: a field that Kubernetes does not know is an error.
func readManifests(t *testing.T, file string) (m manifests) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(checkout, "deploy", "kubernetes", file))
	if err != nil {
		t.Fatal(err)
	}
	into := map[string]any{"ConfigMap holdfast": &m.config, "Service holdfast": &m.service, "StatefulSet holdfast": &m.set}
	if file == clusterManifests {
		into["Service holdfast-nodes"], into["PodDisruptionBudget holdfast"] = &m.nodes, &m.budget
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var kind struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatal(err)
		}
		name := kind.Kind + " " + kind.Metadata.Name
		object, known := into[name]
		if !known {
			t.Fatalf("there is a second %q, or the test does not know it", name)
		}
		delete(into, name)
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(into) > 0 {
		t.Fatalf("there is none of %v", into)
	}
	return m
}

// The parts of the manifests fit one another and the image.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	for _, file := range []string{oneServer, clusterManifests} {
		t.Run(file, func(t *testing.T) { fitsTogether(t, readManifests(t, file)) })
	}
	one, three := readManifests(t, oneServer), readManifests(t, clusterManifests)
	if one.set.Spec.ServiceName != one.service.Name || *one.set.Spec.Replicas != 1 {
		t.Errorf("service %q, %d replicas", one.set.Spec.ServiceName, *one.set.Spec.Replicas)
	}
	set, pod := three.set.Spec, three.set.Spec.Template
	if set.ServiceName != three.nodes.Name || three.nodes.Spec.ClusterIP != corev1.ClusterIPNone || !three.nodes.Spec.PublishNotReadyAddresses {
		t.Errorf("the nodes reach each other by %q, which is not headless or lacks nodes that are not ready", set.ServiceName)
	}
	if set.PodManagementPolicy != appsv1.ParallelPodManagement {
		t.Error("the first start needs all nodes, and they are not started at the same time")
	}
	if *set.Replicas != 3 || three.budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%d nodes, of which %v may be away: the others are no quorum", *set.Replicas, three.budget.Spec.MaxUnavailable)
	}
	for _, selector := range []map[string]string{three.budget.Spec.Selector.MatchLabels, three.nodes.Spec.Selector, pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchLabels} {
		for name, value := range selector {
			if pod.Labels[name] != value {
				t.Errorf("%s=%s is selected, the pods have %q", name, value, pod.Labels[name])
			}
		}
	}
	c := pod.Spec.Containers[0]
	if hook := c.Lifecycle.PreStop.Exec.Command; !slices.Equal(hook, []string{"/holdfast", "cluster", "transfer", "--if-leader", "--data", "/data"}) {
		t.Errorf("before a node is stopped, %q runs", hook)
	}
	for i := range 3 {
		name := three.set.Name + "-" + strconv.Itoa(i)
		if peer := name + "=" + name + "." + three.nodes.Name + ":" + strconv.Itoa(int(three.nodes.Spec.Ports[0].Port)); !strings.Contains(three.config.Data["holdfast.yaml"], peer) {
			t.Errorf("the configuration has no peer %s", peer)
		}
	}
	if node := c.Env[0]; node.Name != "HOLDFAST_NODE" || node.ValueFrom.FieldRef.FieldPath != "metadata.name" {
		t.Errorf("the name of a node is that of %+v", node)
	}
	dir := t.TempDir()
	for name, text := range three.config.Data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := exec.Command(testserver.Binary(), "config", "--config", filepath.Join(dir, "holdfast.yaml"))
	config.Env = append(os.Environ(), "HOLDFAST_NODE=holdfast-1")
	if out, err := config.CombinedOutput(); err != nil {
		t.Errorf("%v\n%.1000s", err, out)
	}
}

// The manifests of one server, and those of a cluster.
const (
	oneServer        = "holdfast.yaml"
	clusterManifests = "cluster.yaml"
)

// fitsTogether looks whether what is named in manifests is there.
func fitsTogether(t *testing.T, m manifests) {
	pod := m.set.Spec.Template
	for name, value := range m.set.Spec.Selector.MatchLabels {
		if pod.Labels[name] != value {
			t.Errorf("the StatefulSet selects %s=%s, its pods have %q", name, value, pod.Labels[name])
		}
	}
	for name, value := range m.service.Spec.Selector {
		if pod.Labels[name] != value {
			t.Errorf("the Service selects %s=%s, the pods have %q", name, value, pod.Labels[name])
		}
	}
	c := pod.Spec.Containers[0]
	ports := map[string]bool{}
	for _, p := range c.Ports {
		ports[p.Name] = true
	}
	for _, p := range m.service.Spec.Ports {
		if !ports[p.TargetPort.StrVal] {
			t.Errorf("the Service's port %s leads to %q, which the container does not have", p.Name, p.TargetPort.StrVal)
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		if !ports[p.HTTPGet.Port.StrVal] {
			t.Errorf("a probe asks port %q, which the container does not have", p.HTTPGet.Port.StrVal)
		}
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil && v.ConfigMap.Name != m.config.Name {
			t.Errorf("volume %s is of ConfigMap %q", v.Name, v.ConfigMap.Name)
		}
	}
	for _, v := range m.set.Spec.VolumeClaimTemplates {
		volumes[v.Name] = true
	}
	for _, mount := range c.VolumeMounts {
		if !volumes[mount.Name] {
			t.Errorf("volume %s is mounted, and not there", mount.Name)
		}
	}
	i := readDockerfile(t)
	if !slices.Equal(c.Args, i.cmd) {
		t.Errorf("its arguments are %q, those of the image %q", c.Args, i.cmd)
	}
	if uid, _, _ := strings.Cut(i.user, ":"); strconv.FormatInt(*pod.Spec.SecurityContext.RunAsUser, 10) != uid {
		t.Errorf("it runs as %d, the image as %s", *pod.Spec.SecurityContext.RunAsUser, uid)
	}
}

// The unit passes systemd's own checks, and what it may do is little by systemd's own
// measure, which goes from 0 (nothing) to 10.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze, which judges the unit, is not installed (Debian: systemd)")
	}
	text, err := os.ReadFile(filepath.Join(checkout, "deploy", "systemd", "holdfast.service"))
	if err != nil {
		t.Fatal(err)
	}
	unit := string(text)
	for _, line := range []string{"Type=notify", "User=holdfast", "StateDirectory=holdfast", "ExecStart=/usr/bin/holdfast serve --config /etc/holdfast/holdfast.yaml"} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("the unit has no line %s", line)
		}
	}
	// The program and its manual are where the package puts them only if it is installed.
	unit = strings.Replace(unit, "ExecStart=/usr/bin/holdfast", "ExecStart="+testserver.Binary(), 1)
	unit = strings.Replace(unit, "man:holdfast(1) ", "", 1)
	path := filepath.Join(t.TempDir(), "holdfast.service")
	if err := os.WriteFile(path, []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", path).CombinedOutput()
	if err != nil {
		t.Skipf("systemd-analyze security is older than version 250: %v\n%.300s", err, out)
	}
	exposure := regexp.MustCompile(`Overall exposure level for \S+: ([\d.]+)`).FindSubmatch(out)
	if exposure == nil {
		t.Fatalf("systemd-analyze security names no exposure:\n%s", out)
	}
	if level, err := strconv.ParseFloat(string(exposure[1]), 64); err != nil || level > 2 {
		t.Errorf("the exposure is %s, want at most 2\n%s", exposure[1], out)
	}
}

// The program accepts each configuration that comes with it.
func TestConfigurations(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"deploy/docker/holdfast.yaml":   "/data",
		"deploy/packages/holdfast.yaml": "/var/lib/holdfast",
	} {
		path := filepath.Join(checkout, file)
		cmd := exec.Command(testserver.Binary(), "config", "--config", path)
		cmd.Env = append(os.Environ(), "HOLDFAST_ALLOW_ANONYMOUS=true")
		out, err := cmd.CombinedOutput()
		if err != nil || !regexp.MustCompile(`(?m)^data +`+want+` `).Match(out) {
			t.Errorf("%s: %v\n%.500s", file, err, out)
		}
	}
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
