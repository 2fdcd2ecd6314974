// Which clients watch keys: programs that are told of each change, and those that wait for a lock.
// The HTTP API says it, which is for administrators.

import { html, useState } from '../vendor/preact-htm.js';
import { ask } from './api.js';
import { count, hex, utf8 } from './bytes.js';
import { state } from './connection.js';
import { Name, useConnection, usePoll } from './ui.js';

const every = 5000; // ms between two readings
const mostShown = 8; // clients of a key
const longest = 256; // bytes of a key that is asked for: it is part of an address

// useWatchers gives what is known of the watchers of keys, by key in hexadecimal, and why it is not
// known.
export function useWatchers(keys) {
  const { phase } = useConnection();
  const [known, setKnown] = useState({});
  const [problem, setProblem] = useState('');
  const asked = keys.filter((key) => key.length > 0 && key.length <= longest).map((key) => hex(key)).join();
  usePoll(async () => {
    if (phase !== 'connected' || asked === '') return;
    try {
      const answer = await ask('GET', 'watchers', { keysHex: asked, limit: 1000 });
      setKnown(Object.fromEntries(answer.keys.map((k) => [k.keyHex, k])));
      setProblem('');
    } catch (err) {
      setKnown({});
      setProblem(err.message);
    }
  }, every, [asked, phase]);
  return [known, problem];
}

// Watchers names the clients that watch a key, but for this page.
export function Watchers({ known, name, problem }) {
  const k = known[hex(name)];
  if (!k) return html`<span class="muted">${problem || (name.length > longest ? 'not known: the key is too long' : '…')}</span>`;
  const others = k.clients.filter((id) => id !== state.client);
  const all = k.watchers - (k.clients.length - others.length);
  if (all === 0) return html`<span class="muted">no other client</span>`;
  const shown = others.slice(0, mostShown);
  return html`<span class="watchers">${shown.map((id, i) => html`${i > 0 && ', '}<a href=${`#/client/${encodeURIComponent(id)}`}><${Name} bytes=${utf8(id)} size=${60} /></a>`)}${all > shown.length && ` and ${count(all - shown.length)} more`}</span>`;
}
