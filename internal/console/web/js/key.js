// One key: its value, what is known of it, its changes, and a form that changes it only if no
// other client has changed it meanwhile.

import { html, useEffect, useRef, useState } from '../vendor/preact-htm.js';
import { clock, diff, dump, hex, label, seconds, size, start, text, toAddress, unhex, utf8, versionTime } from './bytes.js';
import { request, watch } from './connection.js';
import { one } from './scan.js';
import { Confirm, Name, Problem, useConnection, useNow } from './ui.js';
import { useWatchers, Watchers } from './watchers.js';

const mostShown = 64 << 10; // bytes of a value as text
const mostDumped = 4 << 10; // bytes of a value in hexadecimal
const mostEdited = 256 << 10; // bytes of a value that the form shows
const mostParsed = 1 << 20; // bytes of JSON that is formatted
const mostChanges = 30;

// kept is what is kept of a value for the list of changes: of a large one its length.
const kept = (value) => (value && value.length > mostShown ? { length: value.length } : value);

// formOf is how a value is shown at first.
function formOf(value) {
  const plain = value.length <= mostParsed ? text(value) : text(start(value, mostShown));
  if (plain === null || /[\u0000-\u0008\u000e-\u001a]/.test(plain)) return 'hex';
  if (value.length > mostParsed || !/^\s*[[{]/.test(plain)) return 'text';
  try {
    JSON.parse(plain);
    return 'JSON';
  } catch {
    return 'text';
  }
}

function shown(value, form) {
  if (form === 'hex') return { body: dump(value.subarray(0, mostDumped)), cut: value.length > mostDumped ? mostDumped : 0 };
  if (form === 'JSON' && value.length <= mostParsed) {
    try {
      const pretty = JSON.stringify(JSON.parse(text(value)), null, 2);
      return { body: pretty.slice(0, mostShown), cut: pretty.length > mostShown ? mostShown : 0 };
    } catch {
      return { body: 'This is no JSON.', cut: 0 };
    }
  }
  const part = start(value, mostShown);
  const plain = text(part);
  return plain === null ? { body: 'This is not UTF-8: look at it as hex.', cut: 0 } : { body: plain, cut: part.length < value.length ? mostShown : 0 };
}

function Value({ value }) {
  const [form, setForm] = useState(null);
  const now = form || formOf(value);
  const { body, cut } = shown(value, now);
  return html`<section class="card">
    <div class="row">
      <h2 class="grow">Value <span class="muted">${size(value.length)}</span></h2>
      <div class="segments" role="group" aria-label="Show the value as">
        ${['text', 'JSON', 'hex'].map((f) => html`<button type="button" key=${f} aria-pressed=${now === f} onClick=${() => setForm(f)}>${f}</button>`)}
      </div>
    </div>
    <pre class="body" tabindex="0" aria-label="Value">${body}</pre>
    ${cut > 0 && html`<p class="muted small">The first ${size(cut)} are shown. Save the value as a file to see all of it.</p>`}
  </section>`;
}

// Diff shows how one value became another one.
function Diff({ before, after }) {
  const a = before && before.length <= mostShown ? text(before) : null;
  const b = after && after.length <= mostShown ? text(after) : null;
  const lines = a !== null && b !== null ? diff(a, b) : null;
  if (!lines) return html`<p class="muted small">${before ? size(before.length) : 'nothing'} → ${after ? size(after.length) : 'nothing'}</p>`;
  if (lines.every(([sign]) => sign === ' ')) return html`<p class="muted small">The same value.</p>`;
  return html`<pre class="diff" tabindex="0" aria-label="Difference">${lines.slice(0, 60).map(([sign, line], i) => html`<span key=${i} class=${sign === '+' ? 'added' : sign === '-' ? 'removed' : ''}>${sign} ${line.slice(0, 400)}${'\n'}</span>`)}</pre>`;
}

function Changes({ changes }) {
  return html`<section class="card">
    <h2>Changes <span class="muted">while you look</span></h2>
    ${changes.length === 0 && html`<p class="muted">None yet. A change appears here when it is on disk.</p>`}
    <ol class="changes">${changes.map((c) => html`<li key=${c.version + c.deleted}>
      <p><b>${c.deleted ? 'Deleted' : c.before ? 'Changed' : 'Created'}</b> <span class="muted">${clock(versionTime(c.version))}</span></p>
      ${!c.deleted && html`<${Diff} before=${c.before} after=${c.after} />`}
    </li>`)}</ol>
  </section>`;
}

// Editor is the form. base is what the person has seen; current is what there is now, null if
// there is no key. With naming, the key itself is typed.
function Editor({ name, base, current, onDone, onBase }) {
  const naming = name === null;
  const [key, setKey] = useState('');
  const asHex = base ? formOf(base.value) === 'hex' : false;
  const [form, setForm] = useState(asHex ? 'hex' : 'text');
  const [body, setBody] = useState(() => (base ? (asHex ? hex(base.value) : text(base.value)) : ''));
  const [file, setFile] = useState(null);
  const [expiry, setExpiry] = useState(base && base.expires !== null ? 'keep' : 'never');
  const [after, setAfter] = useState('60');
  const [problem, setProblem] = useState('');
  const [busy, setBusy] = useState(false);
  const conflict = !naming && (current === null ? base !== null : !base || current.version !== base.version);

  const save = async (event) => {
    event.preventDefault();
    setProblem('');
    const value = file ? file.bytes : form === 'hex' ? unhex(body) : utf8(body);
    if (value === null) {
      setProblem('These are no bytes in hexadecimal: want two digits for each.');
      return;
    }
    const words = ['SET', naming ? utf8(key) : name, value, 'VER', base ? base.version : '-'];
    if (expiry === 'after') words.push('PX', String(Math.round(Number(after) * 1000)));
    if (expiry === 'keep') words.push('PX', String(Math.max(1, Math.round(base.expires - Date.now()))));
    setBusy(true);
    try {
      const { reply } = await request(words, { token: base?.token });
      if (reply !== -1) {
        onDone(naming ? utf8(key) : name);
        return;
      }
      setProblem(naming ? 'There is a key of this name already; nothing was changed.' : 'Another client has changed the key since you began; nothing was changed. Decide what to keep:');
      onBase(null);
    } catch (err) {
      setProblem(`It is not saved: ${err.message}.`);
    }
    setBusy(false);
  };
  const take = (value, saved) => {
    const binary = formOf(value) === 'hex';
    setForm(binary ? 'hex' : 'text');
    setBody(binary ? hex(value) : text(value));
    setFile(null);
    setProblem('');
    onBase(saved);
  };
  const choose = async (event) => {
    const chosen = event.target.files[0];
    setFile(chosen ? { name: chosen.name, bytes: new Uint8Array(await chosen.arrayBuffer()) } : null);
  };
  return html`<form class="card editor" onSubmit=${save}>
    ${!naming && html`<h2>Change the value</h2>`}
    ${naming && html`<label>Key <input type="text" required value=${key} onInput=${(e) => setKey(e.target.value)} spellcheck="false" autocapitalize="off" autocomplete="off" /></label>`}
    <${Problem} text=${problem} />
    ${conflict && html`<div class="conflict" role="alert">
      <p><b>${current === null ? 'The key has been deleted since you began.' : 'The key has changed since you began.'}</b> Saving is refused until you decide.</p>
      ${current !== null && html`<${Diff} before=${base?.value} after=${current.value} />`}
      <div class="row">
        ${current !== null && html`<button type="button" onClick=${() => take(current.value, current)}>Take their value</button>`}
        <button type="button" onClick=${() => { setProblem(''); onBase(current); }}>${current === null ? 'Create it again with mine' : 'Keep mine, in place of theirs'}</button>
      </div>
    </div>`}
    ${base?.token && html`<p class="muted small">A fencing token guards this key; saving uses the same one.</p>`}
    <label>Value, as ${form === 'hex' ? 'hexadecimal' : 'text'}
      <textarea rows="10" disabled=${file !== null} value=${file ? `the file ${file.name}, ${size(file.bytes.length)}` : body} onInput=${(e) => setBody(e.target.value)} spellcheck="false" autocapitalize="off" autocomplete="off"></textarea>
    </label>
    <label>or from a file <input type="file" onChange=${choose} /></label>
    <fieldset class="row">
      <legend>Expiry</legend>
      ${base && base.expires !== null && html`<label class="inline"><input type="radio" name="expiry" checked=${expiry === 'keep'} onChange=${() => setExpiry('keep')} /> as it is</label>`}
      <label class="inline"><input type="radio" name="expiry" checked=${expiry === 'never'} onChange=${() => setExpiry('never')} /> never</label>
      <label class="inline"><input type="radio" name="expiry" checked=${expiry === 'after'} onChange=${() => setExpiry('after')} /> after</label>
      <label class="inline"><input type="number" min="0.001" step="any" aria-label="Seconds until it expires" value=${after} onInput=${(e) => { setAfter(e.target.value); setExpiry('after'); }} /> s</label>
    </fieldset>
    <div class="row end">
      <button type="button" onClick=${() => onDone(null)}>Cancel</button>
      <button type="submit" class="main" disabled=${busy || conflict}>${naming ? 'Create' : 'Save'}</button>
    </div>
  </form>`;
}

export function NewKey() {
  return html`<div><h1>New key</h1><${Editor} name=${null} base=${null} current=${null} onBase=${() => {}} onDone=${(key) => { location.hash = key ? `#/key/${toAddress(key)}` : '#/keys'; }} /></div>`;
}

function Facts({ name, found }) {
  const now = useNow(250);
  const [known, problem] = useWatchers([name]);
  const expires = found.expires === undefined ? 'not known: the key is too long' : found.expires === null ? 'never' : found.expires <= now ? 'now' : `in ${seconds((found.expires - now) / 1000)}`;
  return html`<dl class="facts">
    <div><dt>Changed</dt><dd>${clock(versionTime(found.version))}</dd></div>
    <div><dt>Version</dt><dd><code>${found.version}</code></dd></div>
    <div><dt>Expires</dt><dd>${expires}</dd></div>
    <div><dt>Fencing token</dt><dd>${found.token ? html`<code>${found.token}</code>` : 'none'}</dd></div>
    <div><dt>Watched by</dt><dd><${Watchers} known=${known} name=${name} problem=${problem} /></dd></div>
  </dl>`;
}

export function Key({ name }) {
  const { phase } = useConnection();
  const [found, setFound] = useState(undefined); // undefined: not read yet; null: no such key
  const [changes, setChanges] = useState([]);
  const [edited, setEdited] = useState(undefined); // what the person has begun with; undefined: they do not edit
  const [asking, setAsking] = useState(false);
  const [problem, setProblem] = useState('');
  const address = toAddress(name);
  const latest = useRef();
  latest.current = found;

  const read = async () => {
    try {
      const got = await one(name);
      if (got && got.value === null) setProblem('The value is larger than an answer may be.');
      else setProblem('');
      setFound(got);
    } catch (err) {
      setProblem(`The key cannot be read: ${err.message}.`);
    }
  };
  useEffect(() => {
    setFound(undefined);
    setChanges([]);
    setEdited(undefined);
    let timer = 0;
    let pending = [];
    const paint = setInterval(() => { // a key that changes a thousand times a second is rendered seven times
      if (pending.length === 0) return;
      const news = pending.splice(0).slice(-mostChanges);
      setChanges((old) => [...news.reverse(), ...old].slice(0, mostChanges));
      setFound(latest.current);
    }, 150);
    const end = watch(name, ({ deleted, value, version }) => {
      const before = latest.current?.value;
      pending.push({ deleted, version, before: kept(before), after: kept(value) });
      if (pending.length > mostChanges) pending.shift();
      latest.current = deleted ? null : { value, version, expires: latest.current?.expires ?? null, token: latest.current?.token ?? null };
      if (!deleted) timer ||= setTimeout(() => { timer = 0; read(); }, 300); // for its expiry and token
    });
    return () => {
      end();
      clearInterval(paint);
      clearTimeout(timer);
    };
  }, [address]);
  useEffect(() => {
    if (phase === 'connected') read();
  }, [address, phase]);

  const remove = async (sure) => {
    setAsking(false);
    if (!sure) return;
    try {
      const words = ['TXN', 'IF', name, 'VER', found.version, 'DEL', name, ...(found.token ? ['FT', found.token] : [])];
      const { reply } = await request(words);
      if (reply[0] !== 1) setProblem('Another client has changed the key meanwhile; it is not deleted.');
      await read();
    } catch (err) {
      setProblem(`It is not deleted: ${err.message}.`);
    }
  };
  const download = () => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([found.value], { type: 'application/octet-stream' }));
    link.download = label(name, 60).text.replace(/[^A-Za-z0-9._-]+/g, '_');
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };
  const small = found && found.value && found.value.length <= mostEdited;
  return html`<div>
    <p class="crumbs"><a href="#/keys">Keys</a></p>
    <h1 class="long"><${Name} bytes=${name} size=${400} /></h1>
    <${Problem} text=${problem} />
    ${found === undefined && !problem && html`<p class="muted">Reading …</p>`}
    ${found === null && html`<p class="lone">There is no such key, or none that you may read. It appears here when it is written.</p>`}
    ${found && html`
      <${Facts} name=${name} found=${found} />
      <div class="row actions">
        ${edited === undefined && html`<button type="button" disabled=${!small} onClick=${() => setEdited(found)}>Change</button>`}
        <button type="button" onClick=${download}>Save as a file</button>
        <button type="button" class="danger" onClick=${() => setAsking(true)}>Delete</button>
        ${!small && html`<span class="muted small">Values above ${size(mostEdited)} are not edited here.</span>`}
      </div>`}
    ${edited !== undefined && html`<${Editor} name=${name} base=${edited} current=${found ?? null} onBase=${(b) => (b === null && found ? read() : setEdited(b))} onDone=${() => { setEdited(undefined); read(); }} />`}
    ${found?.value && html`<${Value} key=${address} value=${found.value} />`}
    <${Changes} changes=${changes} />
    ${asking && html`<${Confirm} question=${html`Delete the key <${Name} bytes=${name} size=${80} />? This cannot be undone.`} action="Delete" onClose=${remove} />`}
  </div>`;
}
