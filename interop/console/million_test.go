package console

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var keys = flag.Int("keys", 0, "how many `keys` TestStoreFullOfKeys writes, 1000000 for example; 0 skips it")

// With as many keys as are asked for, the page lists the first and the next, finds one far behind,
// and shows one live, while it holds only what it shows.
func TestStoreFullOfKeys(t *testing.T) {
	if *keys == 0 {
		t.Skip("-keys is not given")
	}
	s := serve(t, "--max-keys", fmt.Sprint(2**keys))
	name := filepath.Join(t.TempDir(), "keys")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(file)
	for i := range *keys {
		fmt.Fprintf(w, `{"key":"key/%08d","value":"value %d"}`+"\n", i, i)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	s.run("", "import", name)
	last := fmt.Sprintf("key/%08d", *keys-1)

	p := s.open("#/keys")
	p.shows("td.key", "key/00000049")
	p.click("button", "Next")
	p.shows("td.key", "key/00000099")
	p.fill("input[type=search]", last)
	p.click("form button", "Search")
	p.await("the last key alone", `document.querySelectorAll('tbody tr').length === 1 && document.querySelector('td.key').textContent.includes(`+quote(last)+`)`)
	s.set(last, "changed")
	p.shows("td.value", "changed")
	// A pattern that no prefix narrows is compared with each key, and the search goes on until all are.
	p.fill("input[type=search]", "*"+last[len(last)-6:])
	p.click("form button", "Search")
	p.await("the search has ended", `location.hash.startsWith('#/keys/*') && document.querySelector('.pager').textContent.includes('Page 1, the last')`)
	p.shows("td.key", last)
	p.picture("many-keys")
	p.await("the page holds little", `document.querySelectorAll('tbody tr').length <= 50`)
}
