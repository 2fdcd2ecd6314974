package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// modules reads of a program which modules are in it. bom lists them as CycloneDX does;
// notices has their licences, which go with every copy of the program.
func (r *release) modules(ctx context.Context, program string, p platform) (bom, notices []byte, err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, nil, err
	}
	if bom, err = r.billOfMaterials(info, p); err != nil {
		return nil, nil, err
	}
	var text bytes.Buffer
	for _, m := range info.Deps {
		if err := r.licence(ctx, &text, m); err != nil {
			return nil, nil, err
		}
	}
	return bom, text.Bytes(), nil
}

// billOfMaterials is a CycloneDX document of the program's modules, and of Go's standard
// library, by which scanners know of vulnerabilities.
func (r *release) billOfMaterials(info *debug.BuildInfo, p platform) ([]byte, error) {
	program := cdx.Component{
		Type: cdx.ComponentTypeApplication, Name: "holdfast", Version: r.version,
		BOMRef: packageURL(info.Main.Path, r.version), PackageURL: packageURL(info.Main.Path, r.version),
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Properties: &[]cdx.Property{
			{Name: "goos", Value: p.os}, {Name: "goarch", Value: p.arch},
		},
	}
	library := func(name, version string) cdx.Component {
		u := packageURL(name, version)
		return cdx.Component{Type: cdx.ComponentTypeLibrary, Name: name, Version: version, BOMRef: u, PackageURL: u}
	}
	components := []cdx.Component{library("std", "v"+strings.TrimPrefix(info.GoVersion, "go"))}
	uses := []string{components[0].BOMRef}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := library(m.Path, m.Version)
		components, uses = append(components, c), append(uses, c.BOMRef)
	}
	b := cdx.NewBOM()
	b.Metadata = &cdx.Metadata{Timestamp: r.date.Format(time.RFC3339), Component: &program}
	b.Components = &components
	b.Dependencies = &[]cdx.Dependency{{Ref: program.BOMRef, Dependencies: &uses}}
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(b, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

// packageURL names a Go module as the specification of package URLs has it.
func packageURL(module, version string) string {
	return "pkg:golang/" + module + "@" + url.PathEscape(version)
}

// licence adds the licence files of a module.
func (r *release) licence(ctx context.Context, text *bytes.Buffer, m *debug.Module) error {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", m.Path)
	list.Dir = r.source
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("where the module %s is: %w", m.Path, err)
	}
	dir := strings.TrimSpace(string(out))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := false
	for _, e := range entries {
		kind, _, _ := strings.Cut(strings.ToUpper(e.Name()), ".")
		switch {
		case e.IsDir(), kind != "LICENSE" && kind != "LICENCE" && kind != "NOTICE" && kind != "COPYING" && kind != "PATENTS":
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found = true
		fmt.Fprintf(text, "==== %s %s: %s\n\n%s\n\n", m.Path, m.Version, e.Name(), bytes.TrimSpace(content))
	}
	if !found {
		return fmt.Errorf("module %s %s has no licence file: may it be distributed?", m.Path, m.Version)
	}
	return nil
}
