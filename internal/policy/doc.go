// Package policy decides what a client may do, by the rules of one policy file.
//
// The file has the form of the BrokerAuthorization resource of Azure IoT Operations, so
// that an existing one can be used (docs/policy.md has the whole
// format). All rules allow: what no rule allows is denied. A rule applies to a client that
// is one of its principals, and then allows
//
//   - to connect (Connect), with client IDs of a pattern if the rule has one,
//   - to publish to a topic that one of its topic filters matches,
//   - to subscribe to a filter if one of its topic filters covers it: matches every topic
//     that the client's filter can match (covers, in topic.go),
//   - to read and to write keys that one of its keys is or matches.
//
// A token such as {principal.clientId} stands for a text that the client may have chosen.
// It is never read as a pattern: bind and bindKey put it into the compiled form, in which
// wildcards are not text, and refuse values that would reach into other levels.
//
// Rules that a client brings with it, because a webhook has said them, add to those of the file
// (rules.go).
//
// Read and Parse make a Policy of a file. A Guard is access.Permissions by a Policy that
// can be exchanged while the server runs. Explain says which rule decides. ImportMosquitto
// converts the access control list of Mosquitto. Package server makes the Guard; the
// command `holdfast policy` calls the rest.
package policy
