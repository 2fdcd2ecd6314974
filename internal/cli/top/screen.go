package top

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Sequences of ANSI terminals (ECMA-48, and xterm's private modes).
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the other screen, no cursor, long lines are cut
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home  = "\x1b[H"
	rest  = "\x1b[K" // clears the rest of the line
	below = "\x1b[J" // clears the lines below
	bold  = "\x1b[1m"
	plain = "\x1b[0m"
)

// Screen is a terminal that pages are drawn on.
type Screen struct {
	out     *os.File
	in      *os.File    // nil: keys are not read
	state   *term.State // of in, before
	pressed chan byte
}

// Open takes a terminal over until Close: its screen, and if in is a terminal, the keys.
func Open(out *os.File, in any) (*Screen, error) {
	s := &Screen{out: out, pressed: make(chan byte)}
	if f, is := in.(*os.File); is && term.IsTerminal(int(f.Fd())) {
		state, err := term.MakeRaw(int(f.Fd()))
		if err != nil {
			return nil, err
		}
		s.in, s.state = f, state
		go s.read()
	}
	_, err := io.WriteString(out, enter)
	return s, err
}

// read passes keys on until the terminal is gone.
func (s *Screen) read() {
	defer close(s.pressed)
	for key := make([]byte, 1); ; {
		n, err := s.in.Read(key)
		if n == 1 {
			s.pressed <- key[0]
		}
		if err != nil {
			return
		}
	}
}

// Pressed gives the keys that are pressed, and is closed when the terminal is gone.
func (s *Screen) Pressed() <-chan byte { return s.pressed }

// Size is how many columns and lines the terminal has.
func (s *Screen) Size() (columns, lines int) { return Size(s.out) }

// Size is how many columns and lines a terminal has; 80 and 24 if it does not say.
func Size(out *os.File) (columns, lines int) {
	columns, lines, err := term.GetSize(int(out.Fd()))
	if err != nil || columns <= 0 || lines <= 0 {
		return 80, 24
	}
	return columns, lines
}

// Draw replaces what is on the screen by a page.
func (s *Screen) Draw(page []string) error {
	var b strings.Builder
	b.WriteString(home)
	for i, line := range page {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(shown(line))
		b.WriteString(rest)
	}
	b.WriteString(below)
	_, err := io.WriteString(s.out, b.String())
	return err
}

func shown(line string) string {
	if rest, is := strings.CutPrefix(line, title); is {
		return bold + rest + plain
	}
	return line
}

// Close gives the terminal back as it was.
func (s *Screen) Close() error {
	_, err := io.WriteString(s.out, leave)
	if s.state != nil {
		if restored := term.Restore(int(s.in.Fd()), s.state); err == nil {
			err = restored
		}
	}
	return err
}

// Print writes a page as plain text.
func Print(out io.Writer, page []string) error {
	for _, line := range page {
		if _, err := io.WriteString(out, strings.TrimRight(strings.TrimPrefix(line, title), " ")+"\n"); err != nil {
			return err
		}
	}
	return nil
}
