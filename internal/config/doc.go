// Package config reads the configuration file of `holdfast serve`.
//
// The file is YAML. It sets flags of serve by their names, and has a list of listeners,
// each with rules of its own:
//
//	data: data
//	tls-cert: server.crt
//	tls-key: server.key
//	max-connections: 5000
//	listeners:
//	  - url: mqtts://0.0.0.0:8883
//	  - url: mqtt://127.0.0.1:1883
//	    anonymous: true
//
// It is read strictly: what is unknown, said twice or contradicts the command line is an
// error with file and line. The names of files are relative to the directory of the file.
//
// The command serve calls it. It knows no setting but those of listeners: the flags check
// their values.
package config
