//go:build !linux

package abuse

// OwnNetwork does nothing: only Linux has networks for single processes.
func OwnNetwork(...string) (status int, ran bool, err error) { return 0, false, nil }
