package operate

import (
	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// shower shows on a line how many files were copied, or checked, as verb says.
func shower(line *output.Progress, verb string) func(backup.Progress) {
	return func(p backup.Progress) {
		line.Show("%s %d of %d files, %s of %s", verb, p.Files, p.OfFiles, units.FormatBytes(p.Bytes), units.FormatBytes(p.OfBytes))
	}
}
