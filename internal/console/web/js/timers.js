// Timers: messages that the server delivers later (docs/protocol.md, section 14).

import { html, useRef, useState } from '../vendor/preact-htm.js';
import { clock, seconds, text } from './bytes.js';
import { request } from './connection.js';
import { Confirm, Name, Problem, useConnection, useNow, usePoll } from './ui.js';

const want = 100; // rows of a page
const every = 5000; // ms between two readings

export function Timers() {
  const { phase } = useConnection();
  const now = useNow();
  const [prefix, setPrefix] = useState('');
  const [asked, setAsked] = useState('');
  const [starts, setStarts] = useState([null]); // the IDs behind which the pages up to this one begin
  const [rows, setRows] = useState(null);
  const [more, setMore] = useState(false);
  const [problem, setProblem] = useState('');
  const [said, setSaid] = useState(''); // what became of a cancellation
  const [asking, setAsking] = useState(null); // the timer that is to be cancelled
  const turn = useRef(0);
  const load = async () => {
    if (phase !== 'connected') return;
    const mine = ++turn.current;
    const behind = starts[starts.length - 1];
    try {
      const { reply } = await request(['TIMERS', asked, ...(behind ? [behind] : [])]);
      if (mine !== turn.current) return;
      setRows(reply[0].slice(0, want).map(([id, at, topic]) => ({ id, at: Number(text(at)), topic })));
      setMore(reply.length > 1 || reply[0].length > want);
      setProblem('');
    } catch (err) {
      if (mine === turn.current) setProblem(`The timers cannot be read: ${err.message}.`);
    }
  };
  usePoll(load, every, [asked, starts, phase]);
  const cancel = async (sure) => {
    const { id } = asking;
    setAsking(null);
    if (!sure) return;
    setSaid('');
    try {
      const { reply } = await request(['CANCEL', id]);
      await load();
      if (reply !== 1) setSaid('There is no such timer any more: it has been delivered or cancelled.');
    } catch (err) {
      setSaid(`It is not cancelled: ${err.message}.`);
    }
  };
  const search = (event) => {
    event.preventDefault();
    setStarts([null]);
    setAsked(prefix);
  };
  return html`<div>
    <h1>Timers</h1>
    <p class="muted">Messages that the server delivers later, of the principal that you have signed in as, in the order of their IDs.</p>
    <form class="row search" role="search" onSubmit=${search}>
      <label class="grow"><span class="unseen">IDs that begin with</span><input type="search" value=${prefix} onInput=${(e) => setPrefix(e.target.value)} placeholder="IDs that begin with …" spellcheck="false" autocapitalize="off" autocomplete="off" /></label>
      <button type="submit">Show</button>
    </form>
    <${Problem} text=${said} />
    <${Problem} text=${problem} />
    ${rows?.length === 0 && html`<p class="lone">No timer waits.</p>`}
    ${rows?.length > 0 && html`<table class="keys">
      <thead><tr><th scope="col">ID</th><th scope="col">Topic</th><th scope="col">Due</th><th scope="col">In</th><th scope="col"><span class="unseen">Cancel</span></th></tr></thead>
      <tbody>${rows.map((r) => html`<tr key=${text(r.id) ?? r.at}>
        <td class="key"><${Name} bytes=${r.id} size=${80} /></td><td class="value"><${Name} bytes=${r.topic} size=${100} /></td>
        <td class="when">${clock(r.at).slice(0, 19)}</td><td class="left">${r.at <= now ? 'due' : seconds((r.at - now) / 1000)}</td>
        <td class="act"><button type="button" class="danger" onClick=${() => setAsking(r)}>Cancel<span class="unseen"> the timer <${Name} bytes=${r.id} /></span></button></td>
      </tr>`)}</tbody>
    </table>`}
    <div class="row pager">
      <button type="button" disabled=${starts.length < 2} onClick=${() => setStarts(starts.slice(0, -1))}>Back</button>
      <span class="muted">Page ${starts.length}${more ? '' : ', the last'}</span>
      <button type="button" disabled=${!more} onClick=${() => setStarts([...starts, rows[rows.length - 1].id])}>Next</button>
    </div>
    ${asking && html`<${Confirm} question=${html`Cancel the timer <${Name} bytes=${asking.id} size=${80} />? Its message is then never delivered.`} action="Cancel it" onClose=${cancel} />`}
  </div>`;
}
