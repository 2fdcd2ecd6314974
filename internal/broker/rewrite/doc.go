// Package rewrite replaces topic names and filters of clients by others, as the configuration
// says: of clients that cannot be changed, or while a system moves from one tree of topics to
// another one.
//
// The broker calls it before it judges a publish, a will or a subscription, so the policy is
// asked about the topic that counts. It knows neither clients nor permissions.
package rewrite
