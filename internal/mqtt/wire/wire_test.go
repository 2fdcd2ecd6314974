package wire

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// Figure 1-1 of the standard's section 1.5.5.
func TestVarint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v     uint32
		bytes string
	}{
		{0, "00"}, {127, "7F"}, {128, "8001"}, {16_383, "FF7F"}, {16_384, "808001"},
		{2_097_151, "FFFF7F"}, {2_097_152, "80808001"}, {268_435_455, "FFFFFF7F"},
	} {
		b, err := hex.DecodeString(c.bytes)
		if err != nil {
			t.Fatal(err)
		}
		if v, size := Varint(b); v != c.v || size != len(b) {
			t.Errorf("Varint(%x) = %d of %d bytes, want %d", b, v, size, c.v)
		}
		for n := range b {
			if _, size := Varint(b[:n]); size != 0 {
				t.Errorf("Varint(%x) has size %d, want 0: it is not whole", b[:n], size)
			}
		}
		if got := AppendVarint(nil, c.v); !bytes.Equal(got, b) || VarintSize(c.v) != len(b) {
			t.Errorf("AppendVarint(%d) = %x (size %d), want %x", c.v, got, VarintSize(c.v), b)
		}
	}
}

// CloseLength moves what was written if its length needs more than the byte that was reserved.
func TestCloseLength(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 127, 128, 129, 16_383, 16_384, 2_097_151, 2_097_152} {
		content := bytes.Repeat([]byte("abcdefg"), n/7+1)[:n]
		dst, at := OpenLength([]byte("before"))
		dst = CloseLength(append(dst, content...), at)
		want := append(AppendVarint([]byte("before"), uint32(n)), content...)
		if !bytes.Equal(dst, want) {
			t.Errorf("length %d: the content is not as it was", n)
		}
	}
}
