// Package subscribe makes subscriptions: those of a client's SUBSCRIBE, and those that the
// configuration has for it (package autosub). It judges each filter by the rules of topics, the
// policy and the bounds, puts the subscription into the session and the index, and prepares
// the retained messages that it is to bring.
//
// The broker calls it with the session's lock held, and saves what was made. The package knows
// neither connections nor acknowledgements.
package subscribe
