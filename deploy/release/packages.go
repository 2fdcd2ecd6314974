package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// packages writes the packages for Debian and RPM.
func (r *release) packages(p platform, contents []file) error {
	for _, format := range []string{"deb", "rpm"} {
		if err := r.pack(format, p, contents); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) pack(format string, p platform, contents []file) (err error) {
	script := func(name string) string { return r.at("deploy/packages/" + name) }
	depends := map[string][]string{"deb": {"passwd"}, "rpm": {"shadow-utils"}} // for useradd
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "holdfast", Arch: p.arch + p.arm, Platform: p.os, Version: r.version, Release: "1",
		Section: "net", Priority: "optional", License: "Apache-2.0",
		Maintainer: "The Holdfast authors <holdfast@localhost>", Vendor: "The Holdfast authors",
		Homepage:    "https://github.com/holdfast-mqtt/holdfast",
		Description: "MQTT 5 broker with a durable key-value store\n Clients reach keys with versions, expiry and notifications over MQTT.",
		MTime:       r.date,
		Overridables: nfpm.Overridables{
			Depends:  depends[format],
			Contents: r.installed(contents),
			Scripts: nfpm.Scripts{
				PostInstall: script("postinstall.sh"), PreRemove: script("preremove.sh"), PostRemove: script("postremove.sh"),
			},
			RPM: nfpm.RPM{BuildHost: "localhost", Summary: "MQTT 5 broker with a durable key-value store"},
		},
	})
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return packager.Package(info, f)
}

// installed are the files of an archive where a package has them, and the configuration.
func (r *release) installed(contents []file) (all files.Contents) {
	for _, c := range contents {
		dir, name := filepath.Split(c.to)
		to := ""
		switch {
		case name == "holdfast":
			to = "/usr/bin/holdfast"
		case name == "holdfast.service":
			to = "/usr/lib/systemd/system/holdfast.service"
		case dir == "man/":
			to = "/usr/share/man/man1/" + name
		case name == "holdfast.bash":
			to = "/usr/share/bash-completion/completions/holdfast"
		case name == "holdfast.fish":
			to = "/usr/share/fish/vendor_completions.d/holdfast.fish"
		case name == "_holdfast":
			to = "/usr/share/zsh/vendor-completions/_holdfast"
		case strings.HasSuffix(name, ".ps1"):
			continue
		case name == "LICENSE":
			to = "/usr/share/doc/holdfast/copyright"
		default:
			to = "/usr/share/doc/holdfast/" + name
		}
		all = append(all, &files.Content{Source: c.from, Destination: to, FileInfo: &files.ContentFileInfo{Mode: c.mode, MTime: r.date, Owner: "root", Group: "root"}})
	}
	return append(all, &files.Content{
		Source: r.at("deploy/packages/holdfast.yaml"), Destination: "/etc/holdfast/holdfast.yaml", Type: files.TypeConfigNoReplace,
		FileInfo: &files.ContentFileInfo{Mode: 0o644, MTime: r.date, Owner: "root", Group: "root"},
	})
}
