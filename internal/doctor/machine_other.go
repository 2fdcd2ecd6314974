//go:build !linux

package doctor

// ProbeClock says that nothing is known.
func ProbeClock() Synchronization { return Synchronization{} }

// ProbeFileSystem says that nothing is known.
func ProbeFileSystem(string) string { return "" }
