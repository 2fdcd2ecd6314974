//go:build !holdfast_next_level

package members

// Level is the highest format level that this program can read and write.
const Level = 1
