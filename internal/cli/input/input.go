// Package input reads what a command is given on standard input or in a file: lines,
// or all of it. It knows neither keys nor messages.
package input

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
)

// MaxBytes bounds what is read as one value or message. It is more than an MQTT packet
// can carry [MQTT-2.1.4].
const MaxBytes = 268_435_455

// maxKeyLineBytes bounds a line that holds a key or a client ID: more than the longest
// of them takes in any encoding.
const maxKeyLineBytes = 1 << 20

// NonEmptyLines gives the lines of a reader that are not empty. They end with a line
// feed, or with NUL. An error comes last.
func NonEmptyLines(r io.Reader, null bool) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for line, err := range Lines(r, null, maxKeyLineBytes) {
			if (len(line) > 0 || err != nil) && !yield(string(line), err) {
				return
			}
		}
	}
}

// readBytes is how much of a file is read at a time.
const readBytes = 64 << 10

// Lines gives the lines of a reader, empty ones among them, of up to most bytes with their end. An
// error comes last. Each line has memory of its own.
func Lines(r io.Reader, null bool, most int) iter.Seq2[[]byte, error] {
	end, name := byte('\n'), "a line feed"
	if null {
		end, name = 0, "NUL"
	}
	source := "standard input"
	if file, is := r.(*os.File); is && file != os.Stdin {
		source = file.Name()
	}
	return func(yield func([]byte, error) bool) {
		in := bufio.NewReaderSize(r, readBytes)
		for line := []byte(nil); ; {
			part, err := in.ReadSlice(end)
			if len(line)+len(part) > most {
				yield(nil, fmt.Errorf("%s: more than %d bytes without %s", source, most, name))
				return
			}
			line = append(line, part...)
			switch {
			case errors.Is(err, bufio.ErrBufferFull):
				continue
			case errors.Is(err, io.EOF):
				if len(line) > 0 {
					yield(line, nil)
				}
				return
			case err != nil:
				yield(nil, fmt.Errorf("%s: %w", source, err))
				return
			case !yield(line[:len(line)-1:len(line)-1], nil):
				return
			}
			line = nil
		}
	}
}

// UntilError gives what comes before an error, and puts that into err.
func UntilError(lines iter.Seq2[string, error], err *error) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line, e := range lines {
			if e != nil {
				*err = e
				return
			}
			if !yield(line) {
				return
			}
		}
	}
}

// File gives the contents of a file, or of standard input if file is "-". flag is the
// flag that names the file, for errors.
func File(flag, file string, stdin io.Reader) ([]byte, error) {
	in, name := stdin, "standard input"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		defer f.Close()
		in, name = f, file
	}
	value, err := io.ReadAll(io.LimitReader(in, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", flag, name, err)
	}
	if len(value) > MaxBytes {
		return nil, fmt.Errorf("%s: %s: more than %d bytes, which MQTT cannot carry", flag, name, MaxBytes)
	}
	return value, nil
}
