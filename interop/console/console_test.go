package console

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/deadletter"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// A key that another client changes changes before the eyes of the person, in the list and on the
// key's own page, with what is different.
func TestKeySeenLive(t *testing.T) {
	s := serve(t)
	list, page := s.open("#/keys"), s.open("#/key/greeting")
	list.shows("main", "There are no keys that you may read.")
	page.shows("main", "There is no such key")
	s.set("greeting", "hello\nworld")
	list.shows("td.value", "hello world")
	page.shows("pre.body", "hello\nworld")
	page.shows(".facts", "never")
	list.await("the new key flashes", `document.querySelector('tr.flash-1[data-changes="1"]')`)
	s.set("another", "x")
	list.await("it comes in its place", `document.querySelectorAll('tbody tr').length === 2 && document.querySelector('td.key').textContent === 'another'`)
	s.run("", "del", "another")
	list.await("it is gone, and is still shown", `document.querySelectorAll('tbody tr').length === 2 && document.querySelector('tr.gone td.key').textContent === 'another'`)
	list.click("form button", "Search")
	list.await("it is shown no longer", `document.querySelectorAll('tbody tr').length === 1 && !document.querySelector('tr.gone')`)
	s.set("greeting", "good morning\nworld", "--px", "1h")
	list.await("the row has changed", `document.querySelector('tr[data-changes="1"] td.value')?.textContent === 'good morning world'`)
	list.await("its expiry counts down", `/^59 min/.test(document.querySelector('td.left').textContent)`)
	page.shows("pre.body", "good morning\nworld")
	page.shows(".changes .removed", "- hello")
	page.shows(".changes .added", "+ good morning")
	page.await("its expiry counts down", `/in 59 min/.test(document.querySelector('.facts').textContent)`)
	s.run("", "del", "greeting")
	list.shows("tr.gone td.value", "deleted")
	page.shows(".changes", "Deleted")
	page.shows("main", "There is no such key")
}

// Two people edit one key: the second learns of it and decides, and nothing is overwritten before.
func TestTwoPeopleEditOneKey(t *testing.T) {
	s := serve(t)
	s.set("recipe", "flour")
	one, two := s.open("#/key/recipe"), s.open("#/key/recipe")
	for _, p := range []*tab{one, two} {
		p.shows("pre.body", "flour")
		p.click(".actions button", "Change")
	}
	one.fill("textarea", "flour and water")
	two.fill("textarea", "flour and milk")
	one.click(".editor button", "Save")
	one.shows("pre.body", "flour and water")
	two.shows(".conflict", "The key has changed since you began")
	two.shows(".conflict .added", "flour and water")
	two.picture("two-people")
	two.await("it cannot be saved", `[...document.querySelectorAll('button')].find((b) => b.textContent === 'Save').disabled`)
	two.click("button", "Keep mine")
	two.click(".editor button", "Save")
	two.shows("pre.body", "flour and milk")
	one.shows("pre.body", "flour and milk")
	if got := s.run("", "get", "recipe"); strings.TrimSpace(got) != "flour and milk" {
		t.Errorf("the value is %q", got)
	}
	one.visit("#/new")
	one.fill("input[required]", "recipe")
	one.fill("textarea", "nothing")
	one.click("button", "Create")
	one.shows(".problem", "There is a key of this name already")
}

func TestDelete(t *testing.T) {
	s := serve(t)
	s.set("old", "x")
	p := s.open("#/key/old")
	p.shows("pre.body", "x")
	p.click(".actions button", "Delete")
	p.shows("dialog[open]", "Delete the key old?")
	p.click("dialog button", "Cancel")
	p.await("the question is gone", `!document.querySelector('dialog')`)
	p.shows("pre.body", "x")
	p.click(".actions button", "Delete")
	p.click("dialog button", "Delete")
	p.shows("main", "There is no such key")
}

// Whatever keys, values, topics and messages have in them is text.
func TestMarkupIsText(t *testing.T) {
	const markup = `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>`
	s := serve(t)
	s.set(markup, markup)
	s.run("", "pub", "--retain", "evil/"+markup, markup)
	nothing := func(p *tab) {
		t.Helper()
		p.await("nothing of it was interpreted", `window.pwned === undefined && document.querySelectorAll('img:not([src="icon.svg"]), #app script').length === 0`)
	}
	p := s.open("#/keys")
	p.shows("td.key", markup)
	p.shows("td.value", markup)
	p.picture("markup-list")
	nothing(p)
	p.click("td.key a", markup)
	p.shows("h1", markup)
	p.shows("pre.body", markup)
	p.click(".actions button", "Change")
	s.set(markup, markup+"\n"+markup)
	p.shows(".changes .added", markup)
	p.shows(".conflict", markup)
	p.click(".actions button", "Delete")
	p.shows("dialog", markup)
	p.picture("markup-key")
	nothing(p)
	p.click("dialog button", "Cancel")
	p.visit("#/topics")
	p.click("form button", "Subscribe")
	p.shows(".messages .topic", markup)
	p.shows(".messages .payload", markup)
	p.click("form button", "Show")
	p.shows(".tree", markup)
	nothing(p)
	s.keep(markup, deadletter.Code(markup), markup, client.Message{Topic: "evil/" + markup, Payload: []byte(markup), ContentType: markup, UserProperties: []client.UserProperty{{Name: markup, Value: markup}}}, true)
	p.visit("#/processors")
	p.shows(".letters .tag", markup)
	p.eval(`(document.querySelector('.letters summary').click(), '')`)
	p.shows(".letters pre", markup)
	p.click(".letters button", "Replay")
	p.shows("dialog", markup)
	nothing(p)
	p.click("dialog button", "Cancel")
	c := mqtttest.Connect(t, s.mqtt, mqtttest.ClientID(markup))
	c.Subscribe("evil/"+markup+"/#", 1)
	p.visit("#/clients")
	p.shows("td.key", markup)
	p.click("td.key a", markup)
	p.shows("h1", markup)
	p.shows(".plain", markup)
	p.click(".actions button", "Delete")
	p.shows("dialog", markup)
	nothing(p)
	p.click("dialog button", "Cancel")
	p.visit("#/keys/" + "%3Cimg%20src=x%20onerror=window.pwned=1%3E")
	p.shows("main", "No key matches.")
	nothing(p)
}

// A key shows its fencing token, and is changed under the same one.
func TestFencingToken(t *testing.T) {
	s := serve(t)
	const token = "1700000000000:00001:press"
	s.set("guarded", "1", "--fencing-token", token)
	s.set("free", "2")
	p := s.open("#/keys")
	p.shows("tr:nth-child(2) td.key .tag", "fencing token")
	p.click("td.key a", "guarded")
	p.shows("dl", "1700000000000:")
	p.shows("dl", ":press")
	p.click(".actions button", "Change")
	p.shows(".editor", "A fencing token guards this key")
	p.fill("textarea", "3")
	p.click(".editor button", "Save")
	p.shows("pre.body", "3")
	p.shows("dl", ":press")
	if got := s.run("", "get", "guarded"); !strings.HasPrefix(got, "3") {
		t.Errorf("the value is %q", got)
	}
}

// Keys and values that are no text are shown in hexadecimal, and can be changed.
func TestBinary(t *testing.T) {
	s := serve(t)
	s.run("\x00\x01\xfe\xff", "set", "--key-encoding", "base64", "--valuefile", "-", "AP8v") // 00 ff 2f
	p := s.open("#/keys")
	p.shows("td.key .hex", "00ff2f")
	p.shows("td.value", "0001feff")
	p.click("td.key a", "00ff2f")
	p.shows("h1", "00ff2f")
	p.shows("pre.body", "000000  00 01 fe ff")
	p.click(".actions button", "Change")
	p.await("the form has hexadecimal", `document.querySelector('textarea').value === '0001feff'`)
	p.fill("textarea", "0002 7A")
	p.click(".editor button", "Save")
	p.shows("pre.body", "000000  00 02 7a")
	if got := s.run("", "get", "--key-encoding", "base64", "AP8v"); !strings.HasPrefix(got, "\x00\x02z") {
		t.Errorf("the value is %q", got)
	}
	p.click(".actions button", "Change")
	p.fill("textarea", "0g")
	p.click(".editor button", "Save")
	p.shows(".problem", "no bytes in hexadecimal")
}

// A value as large as a packet may be is shown in part, and the page stays usable.
func TestLargeValue(t *testing.T) {
	s := serve(t)
	s.set("large", strings.Repeat("0123456789abcde\n", 4<<20/16))
	p := s.open("#/keys")
	p.shows("td.num", "4.0 MiB")
	p.click("td.key a", "large")
	p.shows("main", "The first 64.0 KiB are shown")
	p.await("no more is in the page", `document.querySelector('pre.body').textContent.length <= 65536`)
	p.picture("large-value")
	p.await("it is not edited", `[...document.querySelectorAll('.actions button')].find((b) => b.textContent === 'Change').disabled`)
	p.click(".segments button", "hex")
	p.shows("pre.body", "000000  30 31 32")
	s.set("large", "small again")
	p.shows(".changes", "4.0 MiB → 11 B")
}

// The page shows as much as fits, and goes on when asked, and a search finds what is far behind.
func TestManyKeys(t *testing.T) {
	s := serve(t)
	var lines strings.Builder
	for i := range 5000 {
		line, err := json.Marshal(map[string]string{"key": fmt.Sprintf("key/%05d", i), "value": fmt.Sprint("value ", i)})
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(line, '\n'))
	}
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run("", "import", file)
	rows := func(p *tab, first, last string) {
		t.Helper()
		p.await("the rows from "+first+" to "+last, fmt.Sprintf(`(() => { const r = document.querySelectorAll('tbody tr'); return r.length <= 50 && r[0]?.textContent.includes(%s) && r[r.length - 1].textContent.includes(%s); })()`, quote(first), quote(last)))
	}
	p := s.open("#/keys")
	rows(p, "key/00000", "key/00049")
	p.click("button", "Next")
	rows(p, "key/00050", "key/00099")
	p.click("button", "Back")
	rows(p, "key/00000", "key/00049")
	p.fill("input[type=search]", "key/*4999")
	p.click("form button", "Search")
	rows(p, "key/04999", "key/04999")
	p.fill("input[type=search]", "key/0499[5-9]")
	p.click("form button", "Search")
	rows(p, "key/04995", "key/04999")
	p.fill("input[type=search]", "key/[")
	p.click("form button", "Search")
	p.shows(".problem", "This is no pattern")
}

// A search that looks at many keys and finds few says how far it is, goes on by itself, and ends
// early if the person stops it. Here an answer of the server has some fifty keys.
func TestLongSearch(t *testing.T) {
	s := serve(t)
	var lines strings.Builder
	value := strings.Repeat("x", 5000)
	for i := range 4000 {
		fmt.Fprintf(&lines, `{"key":"key/%05d","value":"%s"}`+"\n", i, value)
	}
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run("", "import", file)
	s.set("locks/printer", "worker-7", "--px", "1h")
	p := s.open("#/")
	p.connected()
	p.eval(`(new MutationObserver(() => {
		const said = document.querySelector('.searching');
		if (said) window.said = said.textContent;
		if (said && window.stopping) said.querySelector('button').click();
	}).observe(document.body, { childList: true, subtree: true, characterData: true }), '')`)
	p.visit("#/locks")
	p.shows("td.value", "worker-7")
	p.await("it has said how far it was", `/^Searching: [\d.,]+ ?k? keys looked at, none found\. Stop the search$/.test(window.said)`)
	p.await("nothing says that it goes on", `!document.querySelector('.searching')`)
	p.shows(".pager", "Page 1, the last")

	p.eval(`(window.stopping = true, '')`)
	p.visit("#/locks/k")
	p.await("the search was stopped", `/The search was stopped \(\d+ keys looked at, none found\)/.test(document.querySelector('main').textContent)`)
	p.picture("search-stopped")
	p.eval(`(window.stopping = false, '')`)
	p.click("button", "Next")
	p.shows(".pager", "Page 2, the last")
	p.shows("main", "No key that you may read expires.")
}

// The server is killed and comes back: the page says so, and works on by itself.
func TestServerIsKilled(t *testing.T) {
	s := serve(t)
	s.set("counter", "1")
	p := s.open("#/key/counter")
	p.shows("pre.body", "1")
	s.process.Kill()
	p.shows(".banner", "No connection to the server")
	p.shows("pre.body", "1") // what was seen last
	p.picture("server-away")
	s.start()
	p.connected()
	p.await("the notice is gone", `!document.querySelector('.banner')`)
	s.set("counter", "2")
	p.shows("pre.body", "2")
	p.shows(".changes .added", "2")
}

// The server asks who the person is, and its policy says what they see.
func TestSignIn(t *testing.T) {
	dir := t.TempDir()
	users, policy := filepath.Join(dir, "users"), filepath.Join(dir, "policy.yaml")
	s := &server{t: t, dir: filepath.Join(dir, "data"), mqtt: freeAddr(t), admin: freeAddr(t), flags: []string{"--password-file", users, "--policy", policy}}
	for _, user := range []string{"olga", "press", "mute"} {
		s.run("", "passwd", users, user, "-b", "secret of "+user)
	}
	const text = `
rules:
  - principals: {usernames: [olga]}
    brokerResources: [{method: Connect}, {method: Publish, topics: ["#"]}, {method: Subscribe, topics: ["#"]}]
    stateStoreResources: [{method: ReadWrite, keyType: Pattern, keys: ["*"]}]
  - principals: {usernames: [press]}
    brokerResources: [{method: Connect}, {method: Publish, topics: ["statestore/#"]}, {method: Subscribe, topics: ["clients/{principal.clientId}/#"]}]
    stateStoreResources: [{method: Read, keyType: Pattern, keys: ["press/*"]}]
  - principals: {usernames: [mute]}
    brokerResources: [{method: Connect}]
`
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(func() { s.process.Kill() })
	s.run("", "set", "-u", "olga", "--password", "secret of olga", "press/1", "hello")
	s.run("", "set", "-u", "olga", "--password", "secret of olga", "secret", "x")

	p := s.open("#/keys")
	signIn := func(user, password string) {
		t.Helper()
		p.fill("input[name=user]", user)
		p.fill("input[name=password]", password)
		p.click("button", "Sign in")
	}
	p.shows("h1", "Sign in")
	signIn("press", "wrong")
	p.shows(".problem", "The server has refused these credentials")
	signIn("press", "secret of press")
	p.connected()
	p.shows(".state", "connected as press")
	p.shows("td.key", "press/1")
	p.await("no other key is there", `document.querySelectorAll('tbody tr').length === 1`)
	p.click("td.key a", "press/1")
	p.shows("pre.body", "hello")
	p.click(".actions button", "Change")
	p.fill("textarea", "mine")
	p.click(".editor button", "Save")
	p.shows(".problem", "It is not saved: not authorized.")
	p.shows(".facts", "this is for administrators") // who watches it
	p.picture("policy-key")
	p.visit("#/topics")
	p.click("form button", "Subscribe")
	p.shows(".problem", "The subscription is refused: the policy does not allow it.")
	p.fill(".editor input[required]", "t")
	p.click("button.main", "Publish")
	p.shows(".editor .problem", "It is not published: the policy does not allow it.")
	p.visit("#/clients")
	p.shows(".problem", "The clients cannot be listed: this is for administrators")
	p.picture("policy-clients")
	p.visit("#/")
	p.shows(".verdict", "failed.") // the login with the wrong password
	p.await("charts", `document.querySelectorAll('.chart canvas').length === 6`)
	p.picture("policy-overview")
	p.visit("#/processors")
	p.shows("main", "There are no dead letters that you may read.")
	p.click("header button", "Sign out")
	p.shows("h1", "Sign in")
	signIn("mute", "secret of mute")
	p.shows(".problem", "The dead letters cannot be read")
	p.shows(".banner", "The policy does not let you receive answers of the store")
	p.visit("#/keys")
	p.shows(".problem", "The keys cannot be read")
	p.picture("policy-mute")
	p.click("header button", "Sign out")
	p.shows("h1", "Sign in")
	signIn("olga", "secret of olga")
	p.visit("#/keys")
	p.shows("td.key", "secret")
}

// Messages are seen as they come, published, and retained ones found by their topics.
func TestTopics(t *testing.T) {
	s := serve(t)
	p := s.open("#/topics")
	p.connected()
	p.fill(".card input[required]", "plant/#")
	p.click("form button", "Subscribe")
	p.shows("main", "0 received of plant/#")
	p.fill(".editor input[required]", "plant/7/temperature")
	p.fill(".editor textarea", "21.5")
	p.eval(`(document.querySelector('.editor input[type=checkbox]').click(), '')`)
	p.click("button.main", "Publish")
	p.shows(".editor", "The server has taken it")
	p.shows(".messages .topic", "plant/7/temperature")
	p.shows(".messages .payload", "21.5")
	p.click("form button", "Show")
	p.shows(".tree", "temperature")
	p.shows(".tree", "21.5")
}

func TestLocksAndTimers(t *testing.T) {
	s := serve(t)
	s.set("lock/printer", "worker-7", "--px", "1h")
	s.set("other", "x")
	s.run("", "pub", "--after", "1h", "remind/me", "hello")
	p := s.open("#/locks")
	p.shows("td.value", "worker-7")
	p.await("no other key is a lease", `document.querySelectorAll('tbody tr').length === 1`)
	p.visit("#/timers")
	p.shows("td.value", "remind/me")
	s.run("", "pub", "--after", "1h", "--id", "later", "remind/them", "hello")
	p.shows("td.value", "remind/them")
	s.run("", "timers", "cancel", "later")
	p.await("a timer that was cancelled is gone", `document.querySelectorAll('tbody tr').length === 1`)
	p.click("td button", "Cancel")
	p.click("dialog button", "Cancel it")
	p.shows("main", "No timer waits.")
	if got := s.run("", "timers", "list"); strings.Contains(got, "remind/me") {
		t.Errorf("the timer is still there: %s", got)
	}
}

// A key's page says which other clients watch it, and the locks who waits for each.
func TestWhoWatches(t *testing.T) {
	s := serve(t)
	s.set("lock/printer", "worker-7", "--px", "1h")
	page, locks := s.open("#/key/lock%2fprinter"), s.open("#/locks")
	page.shows(".facts", "Watched by")
	const watcher = "<b>worker-8"
	c, err := client.Dial(t.Context(), s.mqtt, client.WithClientID(watcher))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Watch(t.Context(), "lock/printer"); err != nil {
		t.Fatal(err)
	}
	page.shows(".facts .watchers", watcher)
	locks.shows("td.watched", watcher)
	page.click(".facts .watchers a", watcher)
	page.shows("h1", watcher)
	c.Close()
	locks.await("it watches no more", `!document.querySelector('td.watched').textContent.includes('worker-8')`)
}

// The overview says how the server is, and which bound fills up.
func TestOverview(t *testing.T) {
	s := serve(t, "--max-keys", "10")
	p := s.open("#/")
	p.shows(".verdict.good", "Nothing is wrong")
	p.await("charts", `document.querySelectorAll('.chart canvas').length === 6`)
	for i := range 9 {
		s.set(fmt.Sprint("k", i), "v")
	}
	p.shows(".verdict.warn", "Bounds fill up: keys 90 % of the bound (--max-keys)")
	p.await("the figure of keys", `[...document.querySelectorAll('.tiles div')].some((d) => d.textContent === 'Keys9')`)
}

// A person reaches and uses the pages with the keyboard alone.
func TestKeyboard(t *testing.T) {
	s := serve(t)
	s.set("greeting", "hello")
	s.keep("range", deadletter.Undecodable, "no number", client.Message{Topic: "range/shots", Payload: []byte("ten")}, true)
	away := mqtttest.Connect(t, s.mqtt, mqtttest.Persistent("press/7"))
	away.Disconnect()
	away.AwaitEnd()
	p := s.open("#/")
	p.connected()
	press := func(key string) { t.Helper(); p.do(chromedp.KeyEvent(key)) }
	until := func(what string) {
		t.Helper()
		for range 60 {
			press(kb.Tab)
			if p.eval(`document.activeElement.matches(`+quote(what)+`) && document.activeElement.matches(':focus-visible')`) == "true" {
				return
			}
		}
		t.Fatalf("Tab does not reach %s", what)
	}
	until(`nav a[href="#/keys"]`)
	press(kb.Enter)
	p.shows("h1", "Keys")
	until("input[type=search]")
	press("greet*")
	press(kb.Enter)
	p.await("the address has the search", `location.hash === '#/keys/greet*'`)
	p.await("the search is done", `document.querySelectorAll('tbody tr').length === 1`) // until then the list has all keys
	p.shows("td.key", "greeting")
	until("td.key a")
	press(kb.Enter)
	p.shows("pre.body", "hello")
	until(".actions button.danger")
	press(kb.Enter)
	p.await("the question has the focus", `document.querySelector('dialog[open]')?.contains(document.activeElement)`)
	press(kb.Escape)
	p.await("Escape closes it", `!document.querySelector('dialog')`)
	p.shows("pre.body", "hello")

	// A session is found and deleted.
	until(`nav a[href="#/clients"]`)
	press(kb.Enter)
	until("input[type=search]")
	press("press")
	press(kb.Enter)
	p.await("the search is done", `document.querySelectorAll('tbody tr').length === 1`)
	until("td.key a")
	press(kb.Enter)
	p.shows("h1", "press/7")
	until(".actions button.danger")
	press(kb.Enter)
	p.await("the question has the focus", `document.querySelector('dialog[open]')?.contains(document.activeElement)`)
	until("dialog button.danger")
	press(kb.Enter)
	p.shows("main", "There is no such client")

	// A dead letter is opened, and dropped.
	until(`nav a[href="#/processors"]`)
	press(kb.Enter)
	p.shows(".letters", "no number")
	until(".letters summary")
	press(kb.Enter)
	p.shows(".letters pre", "ten")
	until(".letters button.danger")
	press(kb.Enter)
	until("dialog button.danger")
	press(kb.Enter)
	p.shows("main", "There are no dead letters")

	// The policy is asked.
	until(`nav a[href="#/policy"]`)
	press(kb.Enter)
	until("input[name=topic]")
	press("plant/4/speed")
	press(kb.Enter)
	p.shows(".answer.allowed", "publish plant/4/speed")
	until(`nav a[href="#/cluster"]`)
	press(kb.Enter)
	p.shows("main", "This server is by itself")
}

// A page that comes has the focus at once: if it took the focus later, a person who has reached a field by then
// would write into nothing.
func TestFocusComesWithThePage(t *testing.T) {
	p := serve(t).open("#/keys")
	p.connected()
	p.shows("h1", "Keys")
	for _, page := range []string{"Clients", "Topics", "Keys"} {
		at := p.eval(`new Promise((said) => {
			new MutationObserver((_, o) => {
				if (document.querySelector('h1')?.textContent !== ` + quote(page) + `) return;
				o.disconnect();
				said(document.activeElement.id);
			}).observe(document.body, { subtree: true, childList: true, characterData: true });
			document.querySelector('nav a[href="#/` + strings.ToLower(page) + `"]').focus();
			location.hash = ` + quote("#/"+strings.ToLower(page)) + `;
		})`)
		if at != "main" {
			t.Errorf("%s: when the page is there %q has the focus, want the main part", page, at)
		}
	}
}

// What a person writes into the search before the page is painted stays.
func TestSearchOfANewPageKeepsWhatIsWritten(t *testing.T) {
	p := serve(t).open("#/")
	p.connected()
	got := p.eval(`new Promise((said) => {
		new MutationObserver((_, o) => {
			const field = document.querySelector('input[type=search]');
			if (!field) return;
			o.disconnect();
			field.value = 'greet';
			field.dispatchEvent(new Event('input', { bubbles: true }));
			setTimeout(() => said(field.value), 300); // effects after a painting run within 100 ms
		}).observe(document.body, { subtree: true, childList: true });
		location.hash = '#/keys';
	})`)
	if got != "greet" {
		t.Errorf("the field has %q, want what was written", got)
	}
}

// On a phone no page is wider than the screen, and the navigation shows which page it is.
func TestPhone(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.set(strings.Repeat("long/", 100), strings.Repeat("value ", 1000))
	p := s.open("#/")
	p.look("light", 360, 740)
	for _, page := range []string{"", "keys", "new", "locks", "topics", "timers", "clients", "processors", "policy", "cluster", "demo"} {
		p.visit("#/" + page)
		p.await(page+" is in view", `(() => {
			const current = document.querySelector('nav a[aria-current]'), at = current?.getBoundingClientRect();
			return at && current.getAttribute('href') === '#/' + (`+quote(page)+` === 'new' ? 'keys' : `+quote(page)+`) && at.left >= 0 && at.right <= innerWidth;
		})()`)
		p.await(page+" fits", `document.documentElement.scrollWidth <= innerWidth`)
	}
}
