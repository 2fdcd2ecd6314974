//go:build nocounting

package stats

// Counting says whether packets, messages and commands are counted.
const Counting = false
