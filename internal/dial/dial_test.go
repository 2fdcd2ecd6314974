package dial

import (
	"crypto/tls"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		address string
		tls     bool
		ok      bool
	}{
		{"localhost", false, true},
		{"localhost:1883", true, true},
		{"[::1]:1883", false, true},
		{"mqtt://h", false, true},
		{"mqtts://h:8883", false, true},
		{"ws://h/mqtt", false, true},
		{"wss://h:443/mqtt", true, true},
		{"", false, false},
		{":1883", false, false},
		{"ftp://h", false, false},
		{"mqtt://h:port", false, false},
		{"mqtt://h:01883", false, false},
		{"a,b:1884,mqtt://[::1]", false, true},
		{"a, b", true, true},
		{"a,", false, false},
		{",", false, false},
		{"a,ftp://b", false, false},
		{strings.Repeat("a,", MaxServers-1) + "a", false, true},
		{strings.Repeat("a,", MaxServers) + "a", false, false},
		{strings.Repeat(",", 1<<20), false, false},
	} {
		var config *tls.Config
		if test.tls {
			config = &tls.Config{}
		}
		if _, err := To(test.address, config); (err == nil) != test.ok {
			t.Errorf("%q: %v", test.address, err)
		}
	}
}
