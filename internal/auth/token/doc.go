// Package token verifies JSON Web Tokens (RFC 7519) with public keys that it reads from a
// file: a JWKS (RFC 7517) or PEM.
//
// Package auth calls it. It takes signatures of public-key algorithms only, makes no
// connection to fetch keys, and never has a token or a part of it in an error.
package token
