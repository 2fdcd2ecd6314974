// Package config reads the settings of `holdfast serve`: from the command line, from
// variables of the environment, and from a configuration file. The first of them that has a
// setting counts, whatever the others say.
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
// It is read strictly: what is unknown or said twice is an error with file and line. The
// names of files are relative to the directory of the file.
//
// The variable HOLDFAST_MAX_CONNECTIONS sets --max-connections, and so each flag's. The
// values of a flag that may be repeated stand with commas between them. A variable that is
// empty counts as not set.
//
// The commands serve and config call it. It knows no setting but those of listeners: the
// flags check their values.
package config
