// Package terminal gives tests a terminal, on which programs behave as they do in front of
// a person. It works on Linux only.
package terminal
