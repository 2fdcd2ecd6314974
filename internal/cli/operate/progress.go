package operate

import (
	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// shower shows on a line how many files and rows were copied, or checked, as verb says.
func shower(line *output.Progress, verb string) func(backup.Progress) {
	return func(p backup.Progress) {
		switch {
		case p.OfFiles == 0:
			line.Show("%s %d rows", verb, p.Rows)
			return
		case p.Rows > 0:
			line.Show("%s %d of %d files, %s of %s, %d rows", verb, p.Files, p.OfFiles, units.FormatBytes(p.Bytes), units.FormatBytes(p.OfBytes), p.Rows)
			return
		}
		line.Show("%s %d of %d files, %s of %s", verb, p.Files, p.OfFiles, units.FormatBytes(p.Bytes), units.FormatBytes(p.OfBytes))
	}
}
