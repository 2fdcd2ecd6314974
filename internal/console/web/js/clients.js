// Clients and their sessions: a list, and what one of them has. The figures and what ends a client
// are those of the HTTP API, which is for administrators.

import { html, useEffect, useRef, useState } from '../vendor/preact-htm.js';
import { ask } from './api.js';
import { clock, count, seconds, size, utf8 } from './bytes.js';
import { state } from './connection.js';
import { Confirm, Failed, Name, useConnection, useNow, usePoll } from './ui.js';

const want = 50; // rows of a page
const wantSubscriptions = 100;
const everyList = 5000; // ms between two readings
const everyClient = 2000;

const pathOf = (id) => `clients/${encodeURIComponent(id)}`;
const addressOf = (id) => `#/client/${encodeURIComponent(id)}`;

// expiry says what becomes of a session when its client has left.
function expiry(n) {
  if (n === 0) return 'ends with its connection';
  return n < 0 ? 'never ends by itself' : `ends ${seconds(n)} after its connection`;
}

function Rows({ clients }) {
  const now = useNow();
  return html`<table class="keys clients">
    <thead><tr><th scope="col">Client</th><th scope="col">Principal</th><th scope="col">State</th><th scope="col" class="num">Queue</th><th scope="col" class="num">Inflight</th><th scope="col" class="num">Subscriptions</th></tr></thead>
    <tbody>${clients.map((c) => html`<tr key=${c.clientId}>
      <td class="key"><a href=${addressOf(c.clientId)}><${Name} bytes=${utf8(c.clientId)} size=${100} /></a>${c.clientId === state.client && html` <span class="tag">this page</span>`}</td>
      <td class="value">${c.principal ? html`<${Name} bytes=${utf8(c.principal)} size=${80} />` : html`<span class="muted">not proven</span>`}</td>
      <td class="left">${c.connected ? 'connected' : 'away'} for ${seconds(Math.max(0, now - Date.parse(c.since)) / 1000)}</td>
      <td class="num"><span class="narrow">queue </span>${count(c.session.queuedMessages)}${c.session.queuedMessages > 0 && html` <span class="muted">${size(c.session.queuedBytes)}</span>`}</td>
      <td class="num">${c.connection && html`<span class="narrow">inflight </span>${count(c.connection.inflightMessages)}`}</td>
      <td class="num"><span class="narrow">subscriptions </span>${count(c.session.subscriptions)}</td>
    </tr>`)}</tbody>
  </table>`;
}

export function Clients() {
  const { phase } = useConnection();
  const [prefix, setPrefix] = useState('');
  const [connected, setConnected] = useState('');
  const [asked, setAsked] = useState({ prefix: '', connected: '' });
  const [starts, setStarts] = useState(['']); // of the pages up to the one that is shown
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const turn = useRef(0);
  const load = async () => {
    const mine = ++turn.current;
    try {
      const got = await ask('GET', 'clients', { ...asked, limit: want, after: starts[starts.length - 1] });
      if (mine !== turn.current) return;
      setFound(got);
      setProblem(null);
    } catch (err) {
      if (mine === turn.current) setProblem(err);
    }
  };
  usePoll(load, everyList, [asked, starts, phase]);
  const search = (event) => {
    event.preventDefault();
    setStarts(['']);
    setAsked({ prefix, connected });
  };
  return html`<div>
    <h1>Clients</h1>
    <p class="muted">Clients that have a session, connected or away, in the order of their IDs.</p>
    <form class="row search" role="search" onSubmit=${search}>
      <label class="grow"><span class="unseen">Client IDs that begin with</span><input type="search" value=${prefix} onInput=${(e) => setPrefix(e.target.value)} placeholder="client IDs that begin with …" spellcheck="false" autocapitalize="off" autocomplete="off" /></label>
      <label class="inline"><span class="unseen">State</span><select onChange=${(e) => setConnected(e.target.value)}>
        ${[['', 'connected or away'], ['true', 'connected'], ['false', 'away']].map(([value, name]) => html`<option key=${value} value=${value} selected=${value === connected}>${name}</option>`)}
      </select></label>
      <button type="submit">Show</button>
    </form>
    <${Failed} what="The clients cannot be listed" err=${problem} />
    ${found?.clients.length > 0 && html`<${Rows} clients=${found.clients} />`}
    ${found?.clients.length === 0 && !problem && html`<p class="lone">No such client has a session.</p>`}
    ${found && html`<div class="row pager">
      <button type="button" disabled=${starts.length < 2} onClick=${() => setStarts(starts.slice(0, -1))}>Back</button>
      <span class="muted">Page ${starts.length}${found.next ? '' : ', the last'}</span>
      <button type="button" disabled=${!found.next} onClick=${() => setStarts([...starts, found.next])}>Next</button>
    </div>`}
  </div>`;
}

function Subscriptions({ id }) {
  const [starts, setStarts] = useState(['']);
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  usePoll(async () => {
    try {
      setFound(await ask('GET', 'subscriptions', { client: id, limit: wantSubscriptions, after: starts[starts.length - 1] }));
      setProblem(null);
    } catch (err) {
      setProblem(err);
    }
  }, everyList, [id, starts]);
  return html`<section class="card">
    <h2>Subscriptions</h2>
    <${Failed} what="They cannot be listed" err=${problem} />
    ${found?.subscriptions.length === 0 && html`<p class="muted">None.</p>`}
    <ul class="plain">${found?.subscriptions.map((s) => html`<li key=${s.filter}><bdi class="topic">${s.filter}</bdi> <span class="muted">QoS ${s.qos}${s.noLocal ? ', No Local' : ''}${s.retainAsPublished ? ', Retain As Published' : ''}${s.identifier ? `, identifier ${s.identifier}` : ''}</span></li>`)}</ul>
    ${(starts.length > 1 || found?.next) && html`<div class="row pager">
      <button type="button" disabled=${starts.length < 2} onClick=${() => setStarts(starts.slice(0, -1))}>Back</button>
      <button type="button" disabled=${!found?.next} onClick=${() => setStarts([...starts, found.next])}>Next</button>
    </div>`}
  </section>`;
}

function Facts({ client }) {
  const now = useNow();
  const { session, connection } = client;
  const facts = [
    ['State', `${client.connected ? 'connected' : 'away'} for ${seconds(Math.max(0, now - Date.parse(client.since)) / 1000)}, since ${clock(Date.parse(client.since)).slice(0, 19)}`],
    ['Principal', client.principal ? html`<bdi>${client.principal}</bdi>` : 'the client has not proven who it is'],
    ['Session', expiry(session.expirySeconds)],
    ['Queue', `${count(session.queuedMessages)} messages, ${size(session.queuedBytes)}, waiting or inflight`],
  ];
  if (connection) {
    facts.push(
      ['Inflight', `${count(connection.inflightMessages)} of at most ${count(connection.receiveMaximum)}`],
      ['Address', html`<bdi>${connection.address}</bdi>`],
      ['Protocol', `MQTT ${connection.protocol}, keep-alive ${connection.keepAliveSeconds ? seconds(connection.keepAliveSeconds) : 'none'}`],
      ['Not taken by its socket yet', size(connection.outputBytes)],
    );
  }
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Client({ id }) {
  const { phase } = useConnection();
  const [client, setClient] = useState(undefined); // undefined: not read yet; null: there is none
  const [problem, setProblem] = useState(null);
  const [said, setSaid] = useState('');
  const [asking, setAsking] = useState(null); // what the person is asked about: disconnect, or delete
  const load = async () => {
    try {
      setClient(await ask('GET', pathOf(id)));
      setProblem(null);
    } catch (err) {
      if (err.status === 404) setClient(null);
      setProblem(err.status === 404 ? null : err);
    }
  };
  useEffect(() => {
    setClient(undefined);
    setSaid('');
  }, [id]);
  usePoll(load, everyClient, [id, phase]);
  const end = async (sure) => {
    const what = asking;
    setAsking(null);
    if (!sure) return;
    try {
      await ask('DELETE', pathOf(id), { session: what === 'delete' ? 'true' : undefined });
      setSaid(what === 'delete' ? 'The session has been deleted.' : 'The client has been disconnected.');
      await load();
    } catch (err) {
      setProblem(err);
    }
  };
  const name = html`<${Name} bytes=${utf8(id)} size=${80} />`;
  const questions = {
    disconnect: [html`Disconnect the client ${name}? Its session stays; most clients connect again by themselves.`, 'Disconnect'],
    delete: [html`Delete the session of ${name}, with its subscriptions and ${count(client?.session.queuedMessages || 0)} messages? This cannot be undone.`, 'Delete'],
  };
  return html`<div>
    <p class="crumbs"><a href="#/clients">Clients</a></p>
    <h1 class="long"><${Name} bytes=${utf8(id)} size=${400} /></h1>
    <${Failed} what="What is asked was not done" err=${problem} />
    <p class="muted" role="status">${said}</p>
    ${client === undefined && !problem && html`<p class="muted">Reading …</p>`}
    ${client === null && html`<p class="lone">There is no such client. It appears here when it connects.</p>`}
    ${client && html`
      <${Facts} client=${client} />
      <div class="row actions">
        <button type="button" disabled=${!client.connected} onClick=${() => setAsking('disconnect')}>Disconnect</button>
        <button type="button" class="danger" onClick=${() => setAsking('delete')}>Delete the session</button>
      </div>
      <${Subscriptions} key=${id} id=${id} />`}
    ${asking && html`<${Confirm} question=${questions[asking][0]} action=${questions[asking][1]} onClose=${end} />`}
  </div>`;
}
