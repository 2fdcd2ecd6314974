package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// Each load does something, and says how long it took.
func TestBench(t *testing.T) {
	t.Parallel()
	for _, load := range []string{"set", "get", "pub --qos 0", "pub --qos 1", "pub --qos 2"} {
		t.Run(load, func(t *testing.T) {
			t.Parallel()
			args := append(append([]string{"bench"}, strings.Fields(load)...), "--clients", "2", "--inflight", "3", "--for", "2s", "--size", "50", "--keys", "10", "--json")
			r := holdfast(t, args...)
			var got struct {
				Load    string
				Bytes   int
				Results []struct {
					What     string
					Count    int64
					P50, Max float64 `json:"-"`
				}
			}
			if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != 0 || r.err != "" {
				t.Fatalf("%+v: %v", r, err)
			}
			results := map[string]int{"pub --qos 1": 2, "pub --qos 2": 2}[load] // received, acknowledged
			if got.Bytes != 50 || len(got.Results) != max(results, 1) || got.Results[0].Count == 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestBenchPrintsATable(t *testing.T) {
	t.Parallel()
	r := holdfast(t, "bench", "pub", "--clients", "1", "--inflight", "1", "--for", "1s")
	want := `^pub: 1 clients, 1 under way each, 100 bytes, QoS 1, \d+\.\d s\n\n +count +per second +p50 ms +p90 ms +p99 ms +p99.9 ms +max ms\n +received( +[\d.]+){7}\n +acknowledged( +[\d.]+){7}\n$`
	if r.code != 0 || r.err != "" || !regexp.MustCompile(want).MatchString(r.out) {
		t.Errorf("%+v\nwant %s", r, want)
	}
}

func TestBenchIsRefused(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"bench put":                               `unknown load "put": want set, get or pub`,
		"bench --clients 0":                       `--clients "0": want a whole number from 1 to 10000`,
		"bench --clients 10000 --inflight 10000":  "want at most 1000000 requests under way",
		"bench --size 7":                          "want a whole number from 8 to 1048576",
		"bench --qos 3":                           "want a whole number from 0 to 2",
		"bench --for 0s":                          "--for",
		"bench --clientid a":                      "chooses a client ID for each",
		"bench pub --timeout 1s -n 127.0.0.1 x y": `unexpected argument "x"`,
	} {
		holdfast(t, strings.Fields(args)...).want(t, args, 2, "", want)
	}
}

// A server that refuses the load ends the run with its reason.
func TestBenchSaysWhatTheServerRefuses(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir(), "--max-keys", "1")
	r := d.run("bench", "set", "--for", "1m", "--keys", "1000")
	if r.code != 2 || !strings.Contains(r.err, "quota") {
		t.Errorf("%+v", r)
	}
}
