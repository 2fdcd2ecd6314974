package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/holdfast-mqtt/holdfast/internal/cli/root"
)

// sharedFiles are the files that are the same on all platforms: man pages, completions,
// licence, README, the changes.
func (r *release) sharedFiles(work string) (files []file, err error) {
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		files = append(files, file{from: r.at(name), to: name, mode: 0o644})
	}
	for _, make := range []func(cmd *cobra.Command, work string) ([]file, error){r.manPages, completions} {
		made, err := make(root.New(r.version), work)
		if err != nil {
			return nil, err
		}
		files = append(files, made...)
	}
	return files, nil
}

// manPages writes a page for each command, compressed.
func (r *release) manPages(cmd *cobra.Command, work string) (files []file, err error) {
	dir := filepath.Join(work, "man")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	cmd.DisableAutoGenTag = true
	cmd.InitDefaultCompletionCmd()
	header := &doc.GenManHeader{Section: "1", Date: &r.date, Source: "Holdfast " + r.version, Manual: "Holdfast"}
	if err := doc.GenManTree(cmd, header, dir); err != nil {
		return nil, err
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil {
		return nil, err
	}
	slices.Sort(pages)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		var compressed bytes.Buffer
		z, _ := gzip.NewWriterLevel(&compressed, gzip.BestCompression) // without a name and a time
		if _, err := z.Write(text); err != nil {
			return nil, err
		}
		if err := z.Close(); err != nil {
			return nil, err
		}
		if err := os.WriteFile(page+".gz", compressed.Bytes(), 0o644); err != nil {
			return nil, err
		}
		files = append(files, file{from: page + ".gz", to: "man/" + filepath.Base(page) + ".gz", mode: 0o644})
	}
	return files, nil
}

// completions writes what each shell completes command lines with.
func completions(cmd *cobra.Command, work string) (files []file, err error) {
	for name, generate := range map[string]func(b *bytes.Buffer) error{
		"holdfast.bash": func(b *bytes.Buffer) error { return cmd.GenBashCompletionV2(b, true) },
		"holdfast.fish": func(b *bytes.Buffer) error { return cmd.GenFishCompletion(b, true) },
		"holdfast.ps1":  func(b *bytes.Buffer) error { return cmd.GenPowerShellCompletionWithDesc(b) },
		"_holdfast":     func(b *bytes.Buffer) error { return cmd.GenZshCompletion(b) },
	} {
		var text bytes.Buffer
		if err := generate(&text); err != nil {
			return nil, err
		}
		path := filepath.Join(work, name)
		if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
			return nil, err
		}
		files = append(files, file{from: path, to: "completions/" + name, mode: 0o644})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.to, b.to) })
	return files, nil
}
