// Consistent processors: what the server counts of them, and the dead letters that they keep in
// the store (docs/consistent-messaging.md), which are published again or dropped here.

import { html, useEffect, useRef, useState } from '../vendor/preact-htm.js';
import { clock, count, dump, literal, preview, size, start, text, toAddress, utf8 } from './bytes.js';
import { publish, request } from './connection.js';
import { onSample, rates, samples, status } from './metrics.js';
import { one, page } from './scan.js';
import { Chart, Confirm, Problem, useConnection, usePoll } from './ui.js';

const prefix = 'dead-letters/';
const format = 1;
const want = 50; // rows of a page
const mostRequests = 60; // for a page, of keys of which few are letters
const every = 5000; // ms between two readings
const mostShown = 16 << 10; // bytes of a payload

const bytesOf = (base64) => Uint8Array.from(atob(base64 || ''), (c) => c.charCodeAt(0));

// letterOf makes a letter of its key and value: {key, address, processor, id, version, problem} and
// what the value has; null: the key is that of no letter.
function letterOf(key, value, version) {
  const name = text(key);
  const at = name === null ? -1 : name.lastIndexOf('/');
  if (at <= prefix.length || name.length - at - 1 !== 32) return null;
  const letter = { key, address: toAddress(key), processor: name.slice(prefix.length, at), id: name.slice(at + 1), version, message: {}, problem: '' };
  try {
    const stored = JSON.parse(text(value));
    const { message: m } = stored;
    const texts = [stored.code, stored.reason, stored.handler, m.topic, m.content_type ?? '', ...(m.user_properties || []).flat()];
    if (stored.format !== format || !texts.every((t) => typeof t === 'string') || isNaN(Date.parse(stored.time))) throw new Error();
    for (const bytes of [stored.key_base64, stored.message_id_base64, m.payload_base64, m.correlation_data_base64]) bytesOf(bytes);
    return { ...letter, ...stored, key };
  } catch {
    return { ...letter, problem: 'This letter cannot be read: it is of another version, or damaged, or too large.' };
  }
}

// rowOf is what a list keeps of a letter: not its payload.
function rowOf([key, value, version]) {
  const letter = letterOf(key, value, text(version));
  if (letter) letter.message = { topic: letter.message.topic };
  return letter;
}

// replay publishes the message of a letter as it came, and then drops the letter, unless the
// message has become a dead letter again meanwhile.
async function replay(row) {
  const found = await one(row.key);
  if (!found) throw new Error('the letter is gone');
  const letter = letterOf(row.key, found.value, found.version);
  if (letter.problem) throw new Error(letter.problem);
  if (letter.omitted_bytes > 0) throw new Error(`the letter is kept without its payload of ${size(letter.omitted_bytes)}: publish the message again at its source`);
  const m = letter.message;
  const properties = {};
  if (m.content_type) properties.contentType = m.content_type;
  if (m.response_topic) properties.responseTopic = m.response_topic;
  if (m.correlation_data_base64) properties.correlationData = bytesOf(m.correlation_data_base64);
  if (m.utf8) properties.payloadFormatIndicator = true;
  for (const [name, value] of m.user_properties || []) {
    properties.userProperties ||= Object.create(null);
    properties.userProperties[name] = [...(properties.userProperties[name] || []), value];
  }
  await publish(m.topic, bytesOf(m.payload_base64), { qos: 1, properties });
  await request(['TXN', 'IF', letter.key, 'VER', letter.version, 'DEL', letter.key]);
}

function Letter({ row }) {
  const [letter, setLetter] = useState(null);
  const [problem, setProblem] = useState('');
  const open = async (event) => {
    if (!event.target.open || letter) return;
    try {
      const found = await one(row.key);
      const whole = found && letterOf(row.key, found.value, found.version);
      if (whole && !whole.problem) setLetter(whole);
      else setProblem(found ? whole.problem : 'The letter is gone.');
    } catch (err) {
      setProblem(`The letter cannot be read: ${err.message}.`);
    }
  };
  const payload = letter && bytesOf(letter.message.payload_base64);
  const plain = letter && text(start(payload, mostShown));
  return html`<details onToggle=${open}><summary>the whole letter</summary>
    <${Problem} text=${problem} />
    ${letter && html`<dl class="facts">${[
      ['Handler', letter.handler], ['Business key', letter.key_base64 && preview(bytesOf(letter.key_base64))], ['Message ID', letter.message_id_base64 && preview(bytesOf(letter.message_id_base64))], ['Letter', letter.id],
      ['Content Type', letter.message.content_type], ...(letter.message.user_properties || []).map(([name, value]) => [`${name} (user property)`, value.slice(0, 1000)]),
    ].filter(([, value]) => value).map(([name, value], i) => html`<div key=${i}><dt><bdi>${name}</bdi></dt><dd><bdi>${value}</bdi></dd></div>`)}</dl>
    <pre class="body" tabindex="0" aria-label="Payload">${letter.omitted_bytes > 0 ? `The letter is kept without its payload of ${size(letter.omitted_bytes)}.` : plain === null ? dump(payload.subarray(0, 4096)) : plain}${payload.length > mostShown ? `\n… the first ${size(mostShown)} of ${size(payload.length)}` : ''}</pre>`}
  </details>`;
}

function Letters() {
  const { phase } = useConnection();
  const [typed, setTyped] = useState('');
  const [name, setName] = useState('');
  const [starts, setStarts] = useState([{}]); // of the pages up to the one that is shown
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState('');
  const [said, setSaid] = useState('');
  const [asking, setAsking] = useState(null); // {row, what}
  const turn = useRef(0);
  const load = async () => {
    if (phase !== 'connected') return;
    const mine = ++turn.current;
    try {
      const pattern = text(literal(utf8(prefix + name))) + '*';
      const got = await page(pattern, starts[starts.length - 1], want, { fits: (row) => row !== null, make: rowOf, goOn: ({ requests }) => mine === turn.current && requests < mostRequests });
      if (mine !== turn.current) return;
      setFound(got);
      setProblem('');
    } catch (err) {
      if (mine === turn.current) setProblem(`The dead letters cannot be read: ${err.message}.`);
    }
  };
  usePoll(load, every, [name, starts, phase]);
  const act = async (sure) => {
    const { row, what } = asking;
    setAsking(null);
    if (!sure) return;
    setSaid('');
    try {
      if (what === 'replay') await replay(row);
      else await request(['DEL', row.key]);
      await load();
      setSaid(what === 'replay' ? 'The message has been published again.' : 'The letter has been dropped.');
    } catch (err) {
      await load();
      setProblem(`It is not ${what === 'replay' ? 'replayed' : 'dropped'}: ${err.message}.`);
    }
  };
  const search = (event) => {
    event.preventDefault();
    setStarts([{}]);
    setName(typed);
  };
  const questions = {
    replay: (row) => [html`Publish the message again to <bdi>${row.message.topic}</bdi>, and drop the letter? Handlers that have processed it take it for a duplicate; other subscribers get it again.`, 'Replay'],
    drop: (row) => [html`Drop the letter of <bdi>${row.processor}</bdi> about a message on <bdi>${row.message.topic || 'an unknown topic'}</bdi>? The message is then lost.`, 'Drop'],
  };
  const question = asking && questions[asking.what](asking.row);
  return html`<section>
    <h2>Dead letters</h2>
    <p class="muted">Messages that a processor could not process, as they came, with the reason.</p>
    <form class="row search" role="search" onSubmit=${search}>
      <label class="grow"><span class="unseen">Processors whose names begin with</span><input type="search" value=${typed} onInput=${(e) => setTyped(e.target.value)} placeholder="processors whose names begin with …" spellcheck="false" autocapitalize="off" autocomplete="off" /></label>
      <button type="submit">Show</button>
    </form>
    <${Problem} text=${problem} />
    <p class="muted small" role="status">${said}</p>
    ${found?.rows.length === 0 && !problem && html`<p class="lone">There are no dead letters that you may read.</p>`}
    <ul class="plain letters">${found?.rows.map((row) => html`<li key=${row.address} class="card">
      <div class="row"><b class="grow"><bdi>${row.processor}</bdi> <span class="tag">${row.code || 'unreadable'}</span></b>
        <time class="muted">${row.time ? clock(Date.parse(row.time)).slice(0, 19) : ''}</time></div>
      <p><bdi class="topic">${row.message.topic}</bdi></p>
      <p><bdi>${row.problem || row.reason}</bdi></p>
      <${Letter} row=${row} />
      <div class="row end">
        <button type="button" disabled=${Boolean(row.problem)} onClick=${() => setAsking({ row, what: 'replay' })}>Replay<span class="unseen"> the message of letter ${row.id}</span></button>
        <button type="button" class="danger" onClick=${() => setAsking({ row, what: 'drop' })}>Drop<span class="unseen"> the letter ${row.id}</span></button>
      </div>
    </li>`)}</ul>
    ${(starts.length > 1 || found?.next) && html`<div class="row pager">
      <button type="button" disabled=${starts.length < 2} onClick=${() => setStarts(starts.slice(0, -1))}>Back</button>
      <span class="muted">Page ${starts.length}${found?.next ? '' : ', the last'}</span>
      <button type="button" disabled=${!found?.next} onClick=${() => setStarts([...starts, found.next])}>Next</button>
    </div>`}
    ${asking && html`<${Confirm} question=${question[0]} action=${question[1]} onClose=${act} />`}
  </section>`;
}

const outcome = (name) => (s) => s.get('holdfast_store_transactions_total', { outcome: name });
const command = (name) => (s) => s.get('holdfast_store_commands_total', { command: name });

// Counts are those of the server since its start: each message is one transaction, or a LOAD with a
// STORE or a DONE.
function Counts() {
  const [, render] = useState(0);
  useEffect(() => onSample(() => render((n) => n + 1)), []);
  const last = samples[samples.length - 1];
  if (!last) return html`<${Problem} text=${status.problem} />`;
  const tiles = [
    ['Processed', outcome('committed')(last), 'transactions that were committed'], ['Duplicates', outcome('repeated')(last), 'that the server had remembered'],
    ['Conflicts', outcome('unmet')(last), 'another client was first'], ['Refused', outcome('refused')(last), 'for an error, or a bound'],
    ['LOAD', command('LOAD')(last), 'state asked for'], ['STORE and DONE', command('STORE')(last) + command('DONE')(last), 'without a transaction'],
    ['Remembered', last.get('holdfast_store_remembered_messages'), size(last.get('holdfast_store_remembered_bytes'))],
  ];
  const perSecond = (v) => count(v < 10 ? Math.round(v * 10) / 10 : Math.round(v));
  return html`<div>
    <dl class="tiles">${tiles.map(([name, value, what]) => html`<div key=${name}><dt>${name}</dt><dd>${count(value)}</dd><dd class="muted small">${what}</dd></div>`)}</dl>
    ${samples.length > 1 && html`<${Chart} title="Transactions per second" times=${samples.slice(1).map((s) => s.at)} format=${perSecond} series=${[
      { name: 'processed', values: rates(outcome('committed')) }, { name: 'duplicates', values: rates(outcome('repeated')) }, { name: 'conflicts', values: rates(outcome('unmet')) },
    ]} />`}
    <p class="muted small">The server counts the transactions of all clients since its start. Each program counts its own processors by handler, for Prometheus (WithMetrics).</p>
  </div>`;
}

export const Processors = () => html`<div>
  <h1>Processors</h1>
  <${Counts} />
  <${Letters} />
</div>`;
