// Package interop runs clients that others wrote against the built server: the
// Go SDK of Azure IoT Operations (session client, state store, leased lock),
// MQTT.js over TCP and WebSocket, and mosquitto_pub and mosquitto_sub.
//
// It is a module of its own, so that none of these become dependencies of the
// product, and it imports none of the product's packages: it uses only the
// server's command line, two addresses and the published protocol. The
// binary is built once per run from the directory above.
//
//	go test ./...
//
// needs nothing else for the SDK. The other clients are optional, their tests
// are skipped with a message where they are missing:
//
//	npm ci --prefix mqttjs          # Node.js 20 or newer
//	apt-get install mosquitto-clients
//
// HOLDFAST_INTEROP says how all of it runs besides, in words with commas between them: tls
// over mutual TLS, with certificates of `holdfast init`; password with a user name and a
// password; policy with a policy that allows just the topics and keys of the tests
// (testdata/policy.yaml).
//
//	HOLDFAST_INTEROP=password,policy go test ./...
//
// The word failovers has the tests share three nodes of a cluster, whose leader is killed every ten
// seconds and started again; tests of a cluster, or of one connection's notifications, have no part in it.
//
//	HOLDFAST_INTEROP=failovers go test -count=8 -run SDK -skip 'Failovers|ClockAhead|NothingAnswered|APassword|PolicyOfInit' .
//
// Most tests share one server; those that kill it or set its clock have their
// own, and those of failovers have the three nodes of a cluster. To learn whether a generic MQTT test or the server
// is wrong, run that test against another broker:
//
//	HOLDFAST_INTEROP_TCP=127.0.0.1:1883 HOLDFAST_INTEROP_WS=127.0.0.1:9001 \
//		go test -run 'MQTTJS|Mosquitto' -skip 'StateStore|Requests|Kill' .
package interop
