// Package work is what every kind of work gets of a run.
package work

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
)

// Run is a run of the comparison.
type Run struct {
	Lab       *servers.Laboratory
	Report    *report.Report
	RoundTime time.Duration // of a measurement
	Quick     bool          // small numbers
}
