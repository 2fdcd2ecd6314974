//go:build holdfast_next_level

package members

// Level is one more than that of the program without this tag, and stands for the same formats: tests of
// upgrades build such a program.
const Level = 2
