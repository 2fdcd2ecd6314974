// Package httpapi is the HTTP API of a server for its administrators: it lists clients,
// subscriptions and retained messages, ends connections and sessions, publishes, and deletes
// retained messages. docs/http-api.md describes it for users, openapi.json for programs.
//
// Package admin calls it, after it has made sure that an administrator asks. What a client of
// MQTT could do as well (to publish, to read or to delete a retained message) the policy must
// allow the administrator, too.
package httpapi
