// Lists of keys: all that match a pattern, and those that are leases.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../vendor/preact-htm.js';
import { clock, count, newer, preview, seconds, size, toAddress, versionTime } from './bytes.js';
import { watch } from './connection.js';
import { behind, one, page, patternOf } from './scan.js';
import { Name, Problem, useConnection, useNow, usePoll } from './ui.js';
import { useWatchers, Watchers } from './watchers.js';

const want = 50; // rows of a page
const renewEvery = 2500; // ms between two looks for keys that have come
const repaint = 150; // ms between two renderings for changes of keys
const tellEvery = 250; // ms after which a search says how far it is; it does after so many requests as well:
const tellRequests = 16;

// useLive watches the keys of rows, writes changes into them, and renders. A row that stays when
// others come and go is watched without a gap.
function useLive(rows, render) {
  const watched = useRef(new Map()); // row -> what ends its watch
  const dirty = useRef(false);
  const start = (row) => {
    let asked = 0;
    let ended = false;
    const details = async () => { // a notification does not have them
      const found = await one(row.key).catch(() => null);
      asked = 0;
      if (ended || !found || found.version !== row.version) return;
      row.expires = found.expires;
      row.token = found.token;
      dirty.current = true;
    };
    const end = watch(row.key, ({ deleted, value, version }) => {
      row.gone = deleted;
      row.version = version;
      row.changes++;
      if (!deleted) {
        row.preview = preview(value);
        row.size = value.length;
        asked ||= setTimeout(details, 400);
      }
      dirty.current = true;
    });
    return () => {
      ended = true;
      clearTimeout(asked);
      end();
    };
  };
  useEffect(() => {
    const paint = setInterval(() => {
      if (dirty.current) render();
      dirty.current = false;
    }, repaint);
    return () => {
      clearInterval(paint);
      for (const end of watched.current.values()) end();
      watched.current.clear();
    };
  }, []);
  useEffect(() => {
    const stay = new Set(rows);
    for (const [row, end] of [...watched.current]) {
      if (stay.has(row)) continue;
      end();
      watched.current.delete(row);
    }
    for (const row of rows) if (!watched.current.has(row)) watched.current.set(row, start(row));
  }, [rows]);
}

// renewed is a page of which the store has been asked again: keys that have come since are new rows,
// the others keep theirs, and what was deleted while it was shown stays as such.
function renewed(page, got) {
  const known = new Map(page.rows.map((row) => [toAddress(row.key), row]));
  const rows = got.rows.map((fresh) => {
    const row = known.get(toAddress(fresh.key));
    known.delete(toAddress(fresh.key));
    if (!row) return Object.assign(fresh, { changes: 1 });
    if (newer(fresh.version, row.version)) Object.assign(row, fresh, { changes: row.changes + 1 });
    return row;
  });
  for (const row of known.values()) if (row.gone) rows.push(row);
  rows.sort((a, b) => (behind(a.key, b.key) ? 1 : -1));
  const same = rows.length === page.rows.length && rows.every((row, i) => row === page.rows[i]);
  return { ...got, rows: same ? page.rows : rows };
}

function Rows({ rows, leases }) {
  const now = useNow();
  const [, render] = useState(0);
  useLive(rows, () => render((n) => n + 1));
  const left = (row) => (row.expires === null ? '' : row.expires <= now ? 'expired' : seconds((row.expires - now) / 1000));
  const [known, problem] = useWatchers(leases ? rows.map((row) => row.key) : []);
  return html`${problem && html`<p class="muted">Which clients watch these keys is not known: ${problem}.</p>`}<table class="keys">
    <thead><tr><th scope="col">Key</th><th scope="col">${leases ? 'Holder (value)' : 'Value'}</th><th scope="col" class="num">Size</th><th scope="col">${leases ? 'Taken or renewed' : 'Changed'}</th><th scope="col">Expires in</th>${leases && html`<th scope="col">Watched by</th>`}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${toAddress(row.key)} class=${`${row.gone ? 'gone' : ''} ${row.changes ? `flash-${row.changes % 2}` : ''}`} data-changes=${row.changes}>
      <td class="key"><a href=${`#/key/${toAddress(row.key)}`}><${Name} bytes=${row.key} size=${100} /></a>${row.token && html` <span class="tag" title=${row.token}>fencing token</span>`}</td>
      <td class="value"><bdi>${row.gone ? 'deleted' : row.preview}</bdi></td>
      <td class="num">${row.gone || row.size === null ? '' : size(row.size)}</td>
      <td class="when">${clock(versionTime(row.version)).slice(0, 19)}</td>
      <td class="left">${row.gone ? '' : left(row)}</td>
      ${leases && html`<td class="watched"><span class="narrow">watched by </span><${Watchers} known=${known} name=${row.key} problem=${problem && '–'} /></td>`}
    </tr>`)}</tbody>
  </table>`;
}

// KeyList searches, and shows a page at a time. typed is the search of the page's address.
function KeyList({ typed, base, fits, leases, none }) {
  const { phase } = useConnection();
  const [text, setText] = useState(typed);
  const [starts, setStarts] = useState([{}]); // of the pages up to the one that is shown
  const [found, setFound] = useState({ rows: [], next: null });
  const [busy, setBusy] = useState(false);
  const [progress, setProgress] = useState(null); // of a search that takes long: {looked, found}
  const [problem, setProblem] = useState('');
  const turn = useRef(0);
  const stopped = useRef(false); // by the person: what is found by then is shown

  const load = async (from) => {
    const mine = ++turn.current;
    let told = Date.now();
    stopped.current = false;
    setBusy(true);
    setProgress(null);
    setProblem('');
    const goOn = (now) => {
      if (mine !== turn.current || stopped.current) return false;
      if (Date.now() - told >= tellEvery || now.requests % tellRequests === 0) {
        told = Date.now();
        setProgress(now);
      }
      return true;
    };
    try {
      const got = await page(patternOf(typed), from, want, { fits, goOn });
      if (mine === turn.current) setFound(got);
    } catch (err) {
      if (mine === turn.current) setProblem(err.message === 'syntax error' ? 'This is no pattern: a [ needs its ], and a range its end behind its start.' : `The keys cannot be read: ${err.message}.`);
    }
    if (mine === turn.current) setBusy(false);
  };
  const show = (places) => {
    setStarts(places);
    load(places[places.length - 1]);
  };
  useLayoutEffect(() => setText(typed), [typed]); // after the page is painted a person may have typed
  useEffect(() => {
    if (phase === 'connected') show([{}]);
    return () => turn.current++;
  }, [typed]);
  useEffect(() => {
    if (phase === 'connected') show(starts);
  }, [phase]);
  usePoll(async () => {
    if (phase !== 'connected' || busy || found.requests !== 1) return; // a search that takes longer is not repeated by itself
    const mine = turn.current;
    try {
      const got = await page(patternOf(typed), starts[starts.length - 1], want, { fits, goOn: () => false });
      if (mine === turn.current && got.early === undefined) setFound((shown) => renewed(shown, got));
    } catch {} // the banner says that the server is away, and the next look is soon
  }, renewEvery, [typed, starts]);
  // The store returns keys that match; which of them are leases, the page sees.
  const far = ({ looked, requests }) => (leases ? `${count(looked)} keys looked at` : `${count(requests)} answers of the server read`);
  const search = (event) => {
    event.preventDefault();
    const address = text === '' ? base : `${base}/${encodeURIComponent(text)}`;
    if (location.hash === address) show([{}]);
    else location.hash = address;
  };
  return html`<div>
    <form class="row search" role="search" onSubmit=${search}>
      <label class="grow"><span class="unseen">Search for keys</span>
        <input type="search" value=${text} onInput=${(e) => setText(e.target.value)} placeholder="prefix, or pattern: user/*/name, job-[0-9]?" spellcheck="false" autocapitalize="off" autocomplete="off" />
      </label>
      <button type="submit">Search</button>
      ${!leases && html`<a class="button" href="#/new">New key</a>`}
    </form>
    <${Problem} text=${problem} />
    ${found.rows.length > 0 && html`<${Rows} rows=${found.rows} leases=${leases} />`}
    ${!busy && !problem && phase === 'connected' && found.rows.length === 0 && !found.next && html`<p class="lone">${none}</p>`}
    ${busy && progress && html`<p class="searching row"><span role="status">Searching: ${far(progress)}, ${progress.found || 'none'} found.</span> <button type="button" onClick=${() => { stopped.current = true; }}>Stop the search</button></p>`}
    ${!busy && found.early !== undefined && html`<p class="muted">The search was stopped (${far(found.early)}, ${found.rows.length || 'none'} found): “Next” goes on from there.</p>`}
    <div class="row pager">
      <button type="button" disabled=${starts.length < 2 || busy} onClick=${() => show(starts.slice(0, -1))}>Back</button>
      <span class="muted">${busy ? 'Reading …' : `Page ${starts.length}${found.next ? '' : ', the last'}`}</span>
      <button type="button" disabled=${!found.next || busy} onClick=${() => show([...starts, found.next])}>Next</button>
    </div>
  </div>`;
}

export const Keys = ({ typed }) => html`<div>
  <h1>Keys</h1>
  <${KeyList} typed=${typed} base="#/keys" none=${typed ? 'No key matches.' : 'There are no keys that you may read.'} />
</div>`;

export const Locks = ({ typed }) => html`<div>
  <h1>Locks</h1>
  <p class="muted">Keys that expire: leases, and whatever else has an expiry. The value of a lock names its holder; guarded keys carry a fencing token. A client that waits for a lock watches it.</p>
  <${KeyList} typed=${typed} base="#/locks" leases fits=${(row) => row.expires !== null} none="No key that you may read expires." />
</div>`;
