package console

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// patience bounds every wait. Nothing takes this long when all is well.
const patience = time.Minute

var (
	screenshots = flag.String("screenshots", "", "write the screenshots of docs/console into this `directory`")
	pictures    = flag.String("pictures", "", "write what tests show into this `directory`, for a person to look at")
)

var (
	binary  string          // the built program
	browser context.Context // one browser for all tests; nil: there is none
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	chromium := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil && chromium == "" {
			chromium = path
		}
	}
	if chromium == "" {
		fmt.Fprintln(os.Stderr, "Chromium is not installed: the console is not tested in a browser")
		return 0
	}
	dir, err := os.MkdirTemp("", "holdfast-console-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-o", binary, "./cmd/holdfast")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the server: %v\n%s", err, out)
		return 1
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(chromium), chromedp.UserDataDir(filepath.Join(dir, "browser")), chromedp.WSURLReadTimeout(patience),
		chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
	}
	for _, name := range []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "disable-background-networking", "disable-component-update", "disable-sync",
		"disable-extensions", "disable-dev-shm-usage", "mute-audio", "hide-scrollbars",
		// tabs behind others are not slowed down
		"disable-background-timer-throttling", "disable-backgrounding-occluded-windows", "disable-renderer-backgrounding",
	} {
		options = append(options, chromedp.Flag(name, true))
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	defer end()
	var endBrowser context.CancelFunc
	browser, endBrowser = chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {})) // of events that chromedp does not know
	defer endBrowser()
	if err := chromedp.Run(browser); err != nil {
		fmt.Fprintf(os.Stderr, "%s does not start: %v\n", chromium, err)
		return 1
	}
	return m.Run()
}

// server is one running program.
type server struct {
	t       *testing.T
	flags   []string
	dir     string // the data
	process *process.Process
	mqtt    string // HOST:PORT
	admin   string // HOST:PORT
}

// serve starts a server that is stopped when the test ends.
func serve(t *testing.T, flags ...string) *server {
	t.Helper()
	s := &server{t: t, flags: flags, dir: filepath.Join(t.TempDir(), "data"), mqtt: freeAddr(t), admin: freeAddr(t)}
	s.start()
	t.Cleanup(func() { s.process.Kill() })
	return s
}

// freeAddr is an address that nothing listens on, also while the server is down.
func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := process.UnusedAddress()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

var ready = regexp.MustCompile(`listening on`)

// start starts the program, again on the same addresses.
func (s *server) start() {
	s.t.Helper()
	args := append([]string{"serve", "--data", s.dir, "--listen", s.mqtt, "--admin", s.admin, "--disk-reserve", "1MiB"}, s.flags...)
	p, err := process.Start(exec.Command(binary, args...), ready)
	if err != nil {
		s.t.Fatal(err)
	}
	s.process = p
	if err := p.AwaitReady(); err != nil {
		s.t.Fatal(err)
	}
}

// run runs a command of the program against the server, and returns what it has printed.
func (s *server) run(stdin string, args ...string) string {
	s.t.Helper()
	ctx, end := context.WithTimeout(context.Background(), patience)
	defer end()
	cmd := exec.CommandContext(ctx, binary, args...)
	host, port, _ := net.SplitHostPort(s.mqtt)
	cmd.Env = append(os.Environ(), "HOLDFAST_HOST="+host, "HOLDFAST_PORT="+port)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("holdfast %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// set writes a key.
func (s *server) set(key, value string, flags ...string) {
	s.t.Helper()
	s.run(value, append(append([]string{"set"}, flags...), "--valuefile", "-", "--", key)...)
}

// tab is a page of the console in a window of its own.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string // under mu: exceptions that the page did not catch
}

// report has the page note what its content security policy has prevented.
const report = `window.violations = [];
document.addEventListener('securitypolicyviolation', (e) => window.violations.push(e.violatedDirective + ' ' + e.blockedURI));`

// open opens a page of the console. Whether it broke its content security policy is checked when
// the test ends.
func (s *server) open(address string) *tab {
	s.t.Helper()
	c := chromedp.FromContext(browser)
	id, err := target.CreateTarget("about:blank").WithNewWindow(true).Do(cdp.WithExecutor(browser, c.Browser)) // a tab behind others is hidden
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, end := chromedp.NewContext(browser, chromedp.WithTargetID(id))
	p := &tab{t: s.t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		if e, is := event.(*runtime.EventExceptionThrown); is {
			p.mu.Lock()
			p.faults = append(p.faults, e.ExceptionDetails.Error())
			p.mu.Unlock()
		}
	})
	s.t.Cleanup(func() {
		defer end()
		if s.t.Failed() {
			return
		}
		if found := p.eval(`JSON.stringify(window.violations)`); found != "[]" {
			s.t.Errorf("%s: the page tried what its content security policy forbids: %s", address, found)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, fault := range p.faults {
			s.t.Errorf("%s: the page did not catch: %s", address, fault)
		}
	})
	if err := chromedp.Run(ctx); err != nil { // not within a deadline's context: the window would end with that
		s.t.Fatal(err)
	}
	p.do(
		chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := cdppage.AddScriptToEvaluateOnNewDocument(report).Do(ctx)
			return err
		}),
		emulation.SetDeviceMetricsOverride(1280, 900, 1, false),
		chromedp.Navigate("http://"+s.admin+"/console/"+address),
	)
	return p
}

// do carries actions out.
func (p *tab) do(actions ...chromedp.Action) {
	p.t.Helper()
	ctx, end := context.WithTimeout(p.ctx, patience)
	defer end()
	if err := chromedp.Run(ctx, actions...); err != nil {
		p.t.Fatalf("the browser: %v", err)
	}
}

// eval evaluates an expression of JavaScript to a string.
func (p *tab) eval(expression string) string {
	p.t.Helper()
	var out string
	p.do(chromedp.Evaluate("Promise.resolve("+expression+").then(String)", &out, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return out
}

// await waits until an expression of JavaScript is true.
func (p *tab) await(what, expression string) {
	p.t.Helper()
	var last error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(30 * time.Millisecond) {
		ctx, end := context.WithTimeout(p.ctx, patience)
		var is bool
		last = chromedp.Run(ctx, chromedp.Evaluate("Boolean("+expression+")", &is))
		end()
		if is && last == nil {
			return
		}
		if errors.Is(last, context.Canceled) {
			break
		}
	}
	p.t.Fatalf("not within %v: %s (%v); the page shows:\n%s", patience, what, last, p.eval(`document.body.innerText`))
}

// quote is text as a literal of JavaScript.
func quote(text string) string {
	out, _ := json.Marshal(text)
	return string(out)
}

// shows waits until an element has a text in it.
func (p *tab) shows(selector, text string) {
	p.t.Helper()
	p.await(fmt.Sprintf("%s shows %q", selector, text), fmt.Sprintf(`[...document.querySelectorAll(%s)].some((e) => e.textContent.includes(%s))`, quote(selector), quote(text)))
}

// connected waits until the page is connected.
func (p *tab) connected() {
	p.t.Helper()
	p.await("the page is connected", `document.querySelector('.state.connected')`)
}

// fill puts a text into a field.
func (p *tab) fill(selector, text string) {
	p.t.Helper()
	p.await("there is "+selector, "document.querySelector("+quote(selector)+")")
	p.eval(fmt.Sprintf(`(() => { const e = document.querySelector(%s); e.focus(); e.value = %s; e.dispatchEvent(new Event('input', { bubbles: true })); return ''; })()`, quote(selector), quote(text)))
}

// click clicks the first element that fits, is enabled and has the text in it.
func (p *tab) click(selector, text string) {
	p.t.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll(%s)].find((e) => !e.disabled && e.textContent.includes(%s))`, quote(selector), quote(text))
	p.await(fmt.Sprintf("there is %s with %q", selector, text), find)
	p.eval(find + `.click()`)
}

// visit goes to another page of the console.
func (p *tab) visit(address string) {
	p.t.Helper()
	p.eval(`location.hash = ` + quote(address))
}

// picture writes what the window shows, if -pictures is given.
func (p *tab) picture(name string) {
	p.t.Helper()
	if *pictures == "" {
		return
	}
	var picture []byte
	p.do(chromedp.CaptureScreenshot(&picture))
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), picture, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// look has the page be light or dark, and as wide as said.
func (p *tab) look(scheme string, width, height int64) {
	p.t.Helper()
	p.do(emulation.SetDeviceMetricsOverride(width, height, 1, width < 600),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
}
