package admin

import (
	"net/http"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"
)

// Profiles are served under the names and in the form of net/http/pprof. That package does
// more, for which it links 150 kB that nothing else needs: differences of two profiles, and
// symbols of addresses.

const profilesPath = "/debug/pprof/"

// maxSeconds bounds a profile of the processor and a trace.
const maxSeconds = 600

// profile serves the profiles that change nothing, by their names.
func profile(w http.ResponseWriter, r *http.Request) {
	switch name := strings.TrimPrefix(r.URL.Path, profilesPath); name {
	case "profile":
		record(w, r, 30*time.Second, func() error { return pprof.StartCPUProfile(w) }, pprof.StopCPUProfile)
	case "trace":
		record(w, r, time.Second, func() error { return trace.Start(w) }, trace.Stop)
	case "":
		answer(w, http.StatusOK, "profile?seconds=30\ntrace?seconds=1\nheap\nallocs\ngoroutine\nthreadcreate\nblock\nmutex")
	case "heap", "allocs", "goroutine", "threadcreate", "block", "mutex":
		debug, _ := strconv.Atoi(r.URL.Query().Get("debug"))
		if collect, _ := strconv.Atoi(r.URL.Query().Get("gc")); name == "heap" && collect > 0 {
			runtime.GC()
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		if debug != 0 {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = pprof.Lookup(name).WriteTo(w, debug)
	default:
		http.NotFound(w, r)
	}
}

// record serves what is recorded between start and stop, for as many seconds as the request
// says.
func record(w http.ResponseWriter, r *http.Request, d time.Duration, start func() error, stop func()) {
	if text := r.URL.Query().Get("seconds"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds > 0 && seconds <= maxSeconds) {
			http.Error(w, "want more than 0 seconds, and at most "+strconv.Itoa(maxSeconds), http.StatusBadRequest)
			return
		}
		d = time.Duration(seconds * float64(time.Second))
	}
	// The answer takes longer than others.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + answerTimeout))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if err := start(); err != nil {
		w.Header().Del("Content-Type")
		http.Error(w, "it is being recorded already: "+err.Error(), http.StatusConflict)
		return
	}
	defer stop()
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}
