// Package passwd reads and writes password files in the format of mosquitto_passwd, and
// checks passwords against them.
//
// A line is USER:HASH, where HASH is one of
//
//	$7$ITERATIONS$SALT$KEY   PBKDF2 with HMAC-SHA-512, 64 bytes
//	$6$SALT$KEY              SHA-512 of password and salt
//
// with salt and key in base64. Empty lines and lines that begin with # are skipped.
//
// New entries are of the first kind with [DefaultIterations]. Mosquitto reads argon2id
// only if it was built for it, which its packages are not, so a file with such entries
// would not move between the two servers; and each check of argon2id takes tens of MiB,
// which clients that have not proven who they are could make the server allocate.
//
// The package bounds neither how many passwords are checked at a time nor how often;
// package auth does.
package passwd
