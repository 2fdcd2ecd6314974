//go:build !nocounting

package stats

// Counting says whether packets, messages and commands are counted. Only a build with the tag
// nocounting does not: docs/metrics.md compares the two.
const Counting = true
