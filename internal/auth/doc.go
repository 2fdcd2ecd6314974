// Package auth says who a client is: it implements access.Authenticator with password
// files, client certificates and tokens.
//
// A CONNECT is judged by what it shows, in this order:
//
//   - an Authentication Method (JWT, K8S-SAT): its data is a token
//   - a password: a token, if it has the form of one and the server has keys for tokens;
//     otherwise it is looked up in the password file
//   - a client certificate that the TLS handshake has verified
//   - nothing: an anonymous client, where the configuration or the listener allows that
//
// What is shown and wrong refuses the client, whatever else it shows. A password when the
// server has neither a password file nor keys says nothing: then the certificate counts.
//
// The server builds an [Authenticator] and gives it to the broker, which calls it before
// a CONNECT has touched anything. Package throttle bounds what failing clients cost.
package auth
