// Package spans sends spans of requests to a collector of OpenTelemetry, by OTLP over HTTP
// with JSON.
//
// The service begins and ends them. A span that its caller does not want, or that has no room,
// costs nothing further: spans wait in a bounded queue, and one that finds it full is counted
// and dropped, so that no client waits for the collector.
//
// The SDK of OpenTelemetry would do the same with 8 MB more of program and several times as
// many modules; what it has besides, such as spans inside of spans, the server does not need.
package spans
