package report

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{7}, 7}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestTheChartIsWellFormed(t *testing.T) {
	t.Parallel()
	r := &Report{Machine: "a <small> one & old"}
	r.Add("GET 50 × 1, 64 B", servers.Holdfast, Figures{PerSecond: 100e3, CPUPerMillion: 7}, nil)
	r.Add("GET 50 × 1, 64 B", servers.Redis, Figures{PerSecond: 119e3, CPUPerMillion: 6}, nil)
	d := xml.NewDecoder(strings.NewReader(string(r.chart())))
	for {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
