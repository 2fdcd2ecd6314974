// Package passwdcmd has the command passwd, which edits the password file of a server. It
// reads the password and prints what was done; package passwd knows the file.
package passwdcmd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// NewCommand makes the command passwd.
func NewCommand() *cobra.Command {
	var password string
	var remove bool
	iterations := passwd.DefaultIterations
	cmd := &cobra.Command{
		Use:   "passwd FILE USER",
		Short: "Set a user's password in a password file",
		Long: `Set the password of a user in the password file of a server (--password-file), or
take the user out of it. The file is made if there is none; other lines stay as they
are, and a server that runs reads the file again by itself. Files of mosquitto_passwd
can be edited, and Mosquitto reads what this command writes.

The password is asked for on a terminal, without showing it, or is the first line of
standard input.`,
		Example: `  holdfast passwd users alice
  head -c 18 /dev/urandom | base64 | tee alice.secret | holdfast passwd users alice
  holdfast passwd users alice --delete`,
		Args: flags.Args("file", "user"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, user := args[0], args[1]
			batch := cmd.Flags().Changed("password")
			if remove && batch {
				return errors.New("--delete and --password contradict each other: give one of them")
			}
			if remove {
				err := passwd.Delete(file, user)
				if errors.Is(err, passwd.ErrNoUser) {
					return exit.Negative(err.Error())
				}
				return err
			}
			if err := passwd.CheckUser(user); err != nil {
				return err
			}
			secret := []byte(password)
			if !batch {
				var err error
				if secret, err = read(cmd, user); err != nil {
					return err
				}
			}
			return passwd.Set(file, user, secret, iterations)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&password, "password", "b", "", "the `PASSWORD`; other users of the machine see a command's flags while it runs")
	f.BoolVarP(&remove, "delete", "D", false, "take the user out of the file")
	f.IntVarP(&iterations, "iterations", "I", iterations, "how often the password is hashed: more makes a stolen file harder to guess from, and each login slower")
	flags.Limit(f, map[string]flags.Span{"iterations": flags.Between(passwd.MinIterations, passwd.MaxIterations)})
	return cmd
}

// read asks for the password on a terminal, twice, or takes the first line of standard
// input.
func read(cmd *cobra.Command, user string) ([]byte, error) {
	in := cmd.InOrStdin()
	if file, is := in.(*os.File); is && output.IsTerminal(in) {
		first, err := ask(cmd.ErrOrStderr(), file, fmt.Sprintf("Password for %s: ", user))
		if err != nil {
			return nil, err
		}
		again, err := ask(cmd.ErrOrStderr(), file, "The same again: ")
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(first, again) {
			return nil, errors.New("the two passwords differ: nothing was changed")
		}
		return first, nil
	}
	line, err := bufio.NewReader(io.LimitReader(in, passwd.MaxPassword+2)).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read the password: %w", err)
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), nil
}

// ask asks for a line without showing what is typed.
func ask(out io.Writer, terminal *os.File, prompt string) ([]byte, error) {
	fmt.Fprint(out, prompt)
	line, err := term.ReadPassword(int(terminal.Fd()))
	fmt.Fprintln(out)
	if err != nil {
		return nil, fmt.Errorf("cannot read the password: %w", err)
	}
	return line, nil
}
