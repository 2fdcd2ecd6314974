// Package mosquitto has the command import-mosquitto, which makes a configuration of Mosquitto's.
package mosquitto

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/cli/serve"
	"github.com/holdfast-mqtt/holdfast/internal/mosquitto"
)

// NewCommand makes the command import-mosquitto.
func NewCommand() *cobra.Command {
	out := "holdfast"
	cmd := &cobra.Command{
		Use:   "import-mosquitto FILE",
		Short: "Make a configuration of that of Mosquitto",
		Long: `Read the configuration of Mosquitto 2.0 (mosquitto.conf), and write one for
"holdfast serve --config" into a directory: holdfast.yaml with listeners, TLS,
limits and bridges, a copy of the password file, a policy made of the access
control list, and a file for the password of each bridge. Certificates stay where
they are.

Each line that has no counterpart, or a different one, is named on standard error as
FILE:LINE: TEXT. Clients may do no more than before, but for what deny lines of the
list took away: a listener whose rules cannot be kept is left out.

Exit status: 0 if all was converted; 1 if files were written, and lines are named or
the server would refuse what was written; 2 if nothing was written.`,
		Example: `  holdfast import-mosquitto /etc/mosquitto/mosquitto.conf --out site
  holdfast serve --config site/holdfast.yaml`,
		Args: flags.Args("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, problems, err := mosquitto.Convert(args[0])
			if err != nil {
				return err
			}
			if err := write(out, files); err != nil {
				return err
			}
			for _, p := range problems {
				fmt.Fprintln(cmd.ErrOrStderr(), output.OneLine(p.String()))
			}
			config := filepath.Join(out, mosquitto.ConfigFile)
			if err := serve.CheckFile(config); err != nil {
				return exit.Negative(fmt.Sprintf("%s is written, and a server starts with it only when you have changed this: %v", config, err))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "start the server with: holdfast serve --config %s\n", config)
			if len(problems) > 0 {
				return exit.Negative(output.Counted(int64(len(problems)), "line") + " to look at")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", out, "`DIR` to write to; it must be empty, or not exist")
	return cmd
}

// write writes the files into a directory that has none yet: all, or none. They may have passwords.
func write(dir string, files []mosquitto.File) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return fmt.Errorf("--out %s: the directory is not empty", dir)
	}
	defer func() {
		for i := 0; err != nil && i < len(files); i++ {
			_ = os.Remove(filepath.Join(dir, files[i].Name))
		}
	}()
	for _, f := range files {
		to, err := os.OpenFile(filepath.Join(dir, f.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = to.Write(f.Content)
		if err := errors.Join(err, to.Close()); err != nil {
			return err
		}
	}
	return nil
}
