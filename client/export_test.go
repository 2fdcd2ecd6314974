package client

import "context"

// Raw sends a command as it is and returns the server's error, if it is one.
func (c *Client) Raw(ctx context.Context, args ...string) error {
	b := make([][]byte, len(args))
	for i, a := range args {
		b[i] = []byte(a)
	}
	_, err := c.do(ctx, newRequest("raw", "", b...))
	return err
}
