// The crash test: the page counts in a key while a person kills the server, and compares what the
// server has after each start with what it had acknowledged.

import { html, useEffect, useRef, useState } from '../vendor/preact-htm.js';
import { clock, count, hex, text, utf8 } from './bytes.js';
import { request, state } from './connection.js';
import { Name, Problem, useConnection } from './ui.js';

const lifetime = 3600000; // ms; the key expires so long after the last SET
const pause = 200; // ms between two looks for the server
const mostFailures = 20; // in a row on a connection, until the page gives up
const mostCrashes = 50; // that are listed
const drawEvery = 100; // ms

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// run counts in a key until going() is false. Each number is sent when the one before has been
// acknowledged. show gets what is known: {acknowledged, crashes}.
async function run(key, going, show) {
  let acknowledged = 0;
  let crashes = [];
  let away = false;
  let failures = 0;
  let drawn = 0;
  while (going()) {
    try {
      if (away) {
        const { reply } = await request(['GET', key]);
        const found = reply === null ? 0 : Number(text(reply));
        crashes = [{ at: Date.now(), acknowledged, found }, ...crashes].slice(0, mostCrashes);
        acknowledged = Math.max(acknowledged, found); // an answer to a GET is of what is on the disk
        away = false;
      }
      await request(['SET', key, String(acknowledged + 1), 'PX', String(lifetime)]);
      acknowledged++;
      failures = 0;
    } catch (err) {
      if (state.phase === 'connected' && ++failures === mostFailures) throw err;
      away = true;
      await wait(pause);
    }
    if (away || Date.now() - drawn > drawEvery) {
      drawn = Date.now();
      show({ acknowledged, crashes });
    }
  }
}

const lost = (crash) => crash.found < crash.acknowledged;

export function Demo() {
  const { phase } = useConnection();
  const [key, setKey] = useState(''); // empty: nothing counts
  const [known, setKnown] = useState({ acknowledged: 0, crashes: [] });
  const [problem, setProblem] = useState('');
  const current = useRef('');
  useEffect(() => () => { current.current = ''; }, []);
  const start = () => {
    const mine = `demo/counter/${hex(crypto.getRandomValues(new Uint8Array(4)))}`;
    current.current = mine;
    setKey(mine);
    setProblem('');
    setKnown({ acknowledged: 0, crashes: [] });
    run(mine, () => current.current === mine, setKnown).catch((err) => {
      setProblem(`The counter has stopped: ${err.message}.`);
      stop();
    });
  };
  const stop = () => {
    current.current = '';
    setKey('');
  };
  const { acknowledged, crashes } = known;
  const failed = crashes.some(lost);
  return html`<div>
    <h1>Crash test</h1>
    <p>A counter in this page writes 1, 2, 3 … to a key, each number when the server has acknowledged the one before (QoS 1). Meanwhile kill the server without warning, and start it again with the same flags:</p>
    <pre class="body">pkill -9 -x holdfast
holdfast serve --admin ${location.host}</pre>
    <p class="muted">The page connects again by itself, and compares what is in the key with what had been acknowledged. The key expires an hour after the last number.</p>
    <p class="row actions">${key
    ? html`<button type="button" onClick=${stop}>Stop</button>`
    : html`<button type="button" class="main" disabled=${phase !== 'connected'} onClick=${start}>Start the counter</button>`}</p>
    <${Problem} text=${problem} />
    ${(key || acknowledged > 0) && html`
      <p class=${`verdict ${failed ? 'bad' : 'good'}`} role="status"><span class="lamp" aria-hidden="true"></span>${failed ? 'Something that was acknowledged is lost.'
    : crashes.length > 0 ? `Nothing that was acknowledged is lost, in ${count(crashes.length)} ${crashes.length === 1 ? 'interruption' : 'interruptions'}.` : 'The server has not gone away yet.'}</p>
      <dl class="tiles">
        <div><dt>Acknowledged</dt><dd class="acknowledged">${count(acknowledged)}</dd></div>
        ${key && html`<div><dt>Key</dt><dd><a href=${`#/key/${encodeURIComponent(key)}`}><${Name} bytes=${utf8(key)} size=${40} /></a></dd></div>`}
      </dl>
      <ul class="plain crashes">${crashes.map((c) => html`<li class="card" key=${c.at}>
        <b>${lost(c) ? 'Lost' : 'Nothing lost'}</b>: ${count(c.acknowledged)} had been acknowledged when the server went away; when it was back, the key said ${count(c.found)}${c.found > c.acknowledged ? ', a number whose acknowledgement was still on its way' : ''}. <span class="muted">${clock(c.at).slice(11, 19)}</span>
      </li>`)}</ul>`}
  </div>`;
}
