// Package certs reads the certificates, keys and revocation lists of a server's
// listeners, reads them again when they have changed, and makes certificates with an
// authority of its own.
//
// The listeners (internal/listen) use a [Server], the commands init and cert an
// [Authority]. The package opens no connection.
package certs
