//go:build lockrank && !amd64 && !arm64

package lockrank

import (
	"bytes"
	"runtime"
	"strconv"
)

// goroutine is the number of the calling goroutine, as its stack trace gives it:
// "goroutine 17 [running]:".
func goroutine() uintptr {
	var buf [64]byte
	text := buf[len("goroutine "):runtime.Stack(buf[:], false)]
	text = text[:bytes.IndexByte(text, ' ')]
	id, err := strconv.ParseUint(string(text), 10, strconv.IntSize)
	if err != nil {
		panic("lockrank: the number of the goroutine cannot be read: " + err.Error())
	}
	return uintptr(id)
}
