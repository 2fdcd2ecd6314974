package console

import (
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/admin"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
)

// Door is the Listener of a server that may not accept clients yet, or not any more. The zero
// value has none. It is safe for concurrent use.
type Door struct{ l atomic.Pointer[Listener] }

// Open makes the Listener, behind the admin listener a, of a server with these listeners. Where
// clients are asked who they are, a page without credentials may connect only if such a client
// may on a listener on loopback, and a is on loopback, too. timeout is that of Options.
func (d *Door) Open(a *admin.Server, listeners []listen.Config, timeout time.Duration, log *slog.Logger) *Listener {
	o := Options{Addr: a.Addr(), Timeout: timeout, Log: log}
	if certificates := a.Certs(); certificates != nil {
		o.Vouches = certificates.Vouches
	}
	for _, c := range listeners {
		o.Anonymous = o.Anonymous || a.Loopback() && c.Anonymous && c.URL.IsLoopback()
	}
	l := Listen(o)
	d.l.Store(l)
	return l
}

// Close lets no page connect any more; the Listener's owner closes that.
func (d *Door) Close() { d.l.Store(nil) }

// Handler makes MQTT connections of requests while the door is open. Otherwise it answers with
// what unready says: why the server does not accept clients; nothing says that another node of
// its cluster does.
func (d *Door) Handler(unready func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l := d.l.Load(); l != nil {
			l.ServeHTTP(w, r)
			return
		}
		reasons := unready()
		if len(reasons) == 0 {
			reasons = []string{"this node of a cluster does not lead: open the console of the one that does (holdfast cluster status)"}
		}
		http.Error(w, "the server does not accept clients here: "+strings.Join(reasons, "; "), http.StatusServiceUnavailable)
	})
}
