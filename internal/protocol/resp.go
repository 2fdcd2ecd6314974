package protocol

import "bytes"

// parseArray reads an array of blob strings that fills b exactly. It puts as many
// as fit into blobs, as views of b, and returns how many there are. Every one of
// them is checked; nothing is allocated, whatever number or length b claims.
func parseArray(b []byte, blobs [][]byte) (count int, ok bool) {
	count, b, ok = number(b, '*')
	if !ok || count > len(b)/len("$0\r\n\r\n") {
		return 0, false
	}
	for i := range count {
		var blob []byte
		if blob, b, ok = nextBlob(b); !ok {
			return 0, false
		}
		if i < len(blobs) {
			blobs[i] = blob
		}
	}
	return count, len(b) == 0
}

// nextBlob reads the blob string that b begins with. It isn't nil if ok.
func nextBlob(b []byte) (blob, rest []byte, ok bool) {
	size, b, ok := number(b, '$')
	if !ok || len(b)-size < 2 || b[size] != '\r' || b[size+1] != '\n' {
		return nil, nil, false
	}
	return b[:size:size], b[size+2:], true
}

// number reads a line of one type byte and an unsigned decimal. The number is at
// most the length of what follows: nothing can have more bytes or elements.
func number(b []byte, kind byte) (n int, rest []byte, ok bool) {
	if len(b) < len("$0\r\n") || b[0] != kind {
		return 0, nil, false
	}
	i := 1
	for ; i < len(b) && isDigit(b[i]); i++ {
		if n > len(b) {
			return 0, nil, false // and so n*10 can't overflow
		}
		n = n*10 + int(b[i]-'0')
	}
	if i == 1 || !bytes.HasPrefix(b[i:], []byte("\r\n")) {
		return 0, nil, false
	}
	rest = b[i+2:]
	return n, rest, n <= len(rest)
}
