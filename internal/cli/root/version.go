package root

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
)

// versionOf is the version of the program: the release, or what the go command has noted
// of the module.
func versionOf(release string) string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "development build"
	}
	return info.Main.Version
}

func newVersionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, with commit and date",
		Long: `Print the version, the version of Go and the platform that the program was built
with and for, and the commit and its date, if it was built in a checkout with Git.`,
		Args: flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, _ := debug.ReadBuildInfo()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "holdfast %s %s %s/%s%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, source(info))
			return err
		},
	}
}

// source is the commit that the program was built of, its date, and whether files differed
// from it; empty where the go command has not noted that.
func source(info *debug.BuildInfo) string {
	if info == nil {
		return ""
	}
	noted := map[string]string{}
	for _, s := range info.Settings {
		if name, is := strings.CutPrefix(s.Key, "vcs."); is {
			noted[name] = s.Value
		}
	}
	if noted["revision"] == "" {
		return ""
	}
	text := " commit " + noted["revision"]
	if noted["time"] != "" {
		text += " " + noted["time"]
	}
	if noted["modified"] == "true" {
		text += " modified"
	}
	return text
}

// printVersion is what --version prints. A template of cobra would do the same, but
// text/template calls methods by their names, so that the linker removes none of any
// package: the program would have 26 MB instead of 22.
func printVersion(w io.Writer, version string) error {
	_, err := fmt.Fprintf(w, "holdfast %s\n", version)
	return err
}
