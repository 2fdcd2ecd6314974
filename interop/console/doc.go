// Package console tests the console of the built program in a headless Chromium, as a person
// would use it. It is a module of its own, so that the program does not depend on what drives the
// browser. Without Chromium all of it is skipped.
package console
