package protocol

// parseArray reads an array of blob strings that fills b exactly. It puts as many
// as fit into blobs, as views of b, and returns how many there are. Every one of
// them is checked; nothing is allocated, whatever number or length b claims.
func parseArray(b []byte, blobs [][]byte) (count int, ok bool) {
	count, next := number(b, 0, '*')
	if next < 0 || count > (len(b)-next)/len("$0\r\n\r\n") {
		return 0, false
	}
	for i := range count {
		var blob []byte
		if blob, next = nextBlob(b, next); next < 0 {
			return 0, false
		}
		if i < len(blobs) {
			blobs[i] = blob
		}
	}
	return count, next == len(b)
}

// nextBlob reads the blob string of b at the index at, and returns it as a view,
// never nil, with the index after it. That is negative if there is none.
func nextBlob(b []byte, at int) (blob []byte, next int) {
	size, start := number(b, at, '$')
	if start < 0 {
		return nil, -1
	}
	end := start + size
	if len(b)-end < 2 || b[end] != '\r' || b[end+1] != '\n' {
		return nil, -1
	}
	return b[start:end:end], end + 2
}

// number reads the line of b at the index at: a type byte and an unsigned
// decimal. It returns the index after it, which is negative if there is no such
// line. The number is at most the length of what follows, for nothing can have
// more bytes or elements than that.
func number(b []byte, at int, kind byte) (n, next int) {
	if len(b)-at < len("$0\r\n") || b[at] != kind || !isDigit(b[at+1]) {
		return 0, -1
	}
	i := at + 1
	for ; i < len(b) && isDigit(b[i]); i++ {
		if n > len(b) {
			return 0, -1 // and so n*10 can't overflow
		}
		n = n*10 + int(b[i]-'0')
	}
	if len(b)-i < 2 || b[i] != '\r' || b[i+1] != '\n' || n > len(b)-i-2 {
		return 0, -1
	}
	return n, i + 2
}
