//go:build lockrank && (amd64 || arm64)

package lockrank

// goroutine tells the calling goroutine from all others that run: it is the address
// of the runtime's record of it. To read its number off a stack trace, as on other
// processors, would make the tests four times slower.
func goroutine() uintptr
