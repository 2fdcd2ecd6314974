// Package auth says who a client is: it implements access.Authenticator with password
// files, client certificates, tokens and a webhook.
//
// The first of these proofs that a CONNECT has is judged:
//
//   - an Authentication Method (JWT, K8S-SAT): its data is a token
//   - a password: a token, if it has the form of one and the server has keys for tokens;
//     otherwise it is looked up in the password file
//   - whatever a webhook takes, of clients that name no user of the password file, before
//     what follows; it may answer that it does not know the client
//   - a client certificate that the TLS handshake has verified
//   - none: an anonymous client, where the configuration or the listener allows that
//
// If a proof is wrong, the client is refused, even if another proof is right. A server that
// has neither a password file nor keys ignores passwords, and judges the certificate.
//
// The server builds an [Authenticator] and gives it to the broker, which calls it before
// a CONNECT has changed anything. Package throttle bounds what failing clients cost.
package auth
