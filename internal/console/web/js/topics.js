// Topics: messages as they come, retained ones by their topics, and a form that publishes one.

import { html, useEffect, useRef, useState } from '../vendor/preact-htm.js';
import { clock, dump, preview, size, start, text, utf8 } from './bytes.js';
import { publish, subscribe } from './connection.js';
import { Problem } from './ui.js';

const mostMessages = 200; // kept, and shown
const mostPayload = 16 << 10; // bytes kept of each
const mostRetained = 2000; // topics in the tree
const repaint = 200; // ms between two renderings

function Message({ message }) {
  const plain = text(message.payload);
  const properties = Object.entries(message.properties);
  return html`<li>
    <details>
      <summary><bdi class="topic">${message.topic}</bdi> <span class="muted">QoS ${message.qos}${message.retain ? ', retained' : ''}, ${size(message.length)}</span><bdi class="payload">${preview(message.payload)}</bdi></summary>
      <pre class="body" tabindex="0" aria-label="Payload">${plain === null ? dump(message.payload.subarray(0, 4096)) : plain}${message.length > message.payload.length ? `\n… the first ${size(message.payload.length)} of ${size(message.length)}` : ''}</pre>
      ${properties.length > 0 && html`<dl class="facts">${properties.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd><bdi>${value}</bdi></dd></div>`)}</dl>`}
    </details>
    <time class="muted">${clock(message.at).slice(11)}</time>
  </li>`;
}

// propertiesOf are a message's, as text.
function propertiesOf(packet) {
  const out = {};
  const p = packet.properties || {};
  if (p.contentType) out['Content Type'] = p.contentType;
  if (p.responseTopic) out['Response Topic'] = p.responseTopic;
  if (p.correlationData) out['Correlation Data'] = preview(p.correlationData);
  if (p.messageExpiryInterval !== undefined) out['Message Expiry'] = `${p.messageExpiryInterval} s`;
  for (const [name, value] of Object.entries(p.userProperties || {}).slice(0, 50)) out[`${name} (user property)`] = [value].flat().join(', ').slice(0, 1000);
  return out;
}

function Subscribe() {
  const [filter, setFilter] = useState('#');
  const [active, setActive] = useState(''); // the filter that is subscribed to; empty: none
  const [held, setHeld] = useState(false);
  const [problem, setProblem] = useState('');
  const [, render] = useState(0);
  const list = useRef([]);
  const total = useRef(0);
  const hold = useRef(false);
  hold.current = held;
  useEffect(() => {
    if (!active) return undefined;
    list.current = [];
    total.current = 0;
    let dirty = true;
    let serial = 0;
    const end = subscribe(active, 1, (topic, payload, packet) => {
      total.current++;
      dirty = true;
      if (hold.current) return;
      list.current.unshift({ serial: serial++, at: Date.now(), topic, qos: packet.qos, retain: packet.retain, length: payload.length, payload: start(payload, mostPayload).slice(), properties: propertiesOf(packet) });
      if (list.current.length > mostMessages) list.current.pop();
    }, (reason) => setProblem(reason ? `The subscription is refused: ${reason}.` : ''));
    const paint = setInterval(() => {
      if (dirty) render((n) => n + 1);
      dirty = false;
    }, repaint);
    return () => {
      end();
      clearInterval(paint);
    };
  }, [active]);
  const submit = (event) => {
    event.preventDefault();
    setProblem('');
    setActive(active === filter ? '' : filter);
  };
  return html`<section class="card">
    <h2>Messages</h2>
    <form class="row" onSubmit=${submit}>
      <label class="grow"><span class="unseen">Topic filter</span><input type="text" required value=${filter} onInput=${(e) => setFilter(e.target.value)} placeholder="topic filter: plant/+/temperature" spellcheck="false" autocapitalize="off" autocomplete="off" /></label>
      <button type="submit" class="main">${active && active === filter ? 'Unsubscribe' : 'Subscribe'}</button>
      <button type="button" aria-pressed=${held} disabled=${!active} onClick=${() => setHeld(!held)}>${held ? 'Go on' : 'Hold'}</button>
    </form>
    <${Problem} text=${problem} />
    <p class="muted small">${active ? html`${total.current.toLocaleString('en')} received of <bdi>${active}</bdi>; the last ${mostMessages} are kept.` : 'Subscribe to see messages as they come.'}</p>
    <ol class="messages" aria-label="Messages">${list.current.map((m) => html`<${Message} key=${m.serial} message=${m} />`)}</ol>
  </section>`;
}

function Publish() {
  const [fields, setFields] = useState({ topic: '', payload: '', qos: '1', retain: false, type: '', expiry: '', properties: '' });
  const [said, setSaid] = useState({ problem: '', done: '' });
  const set = (name) => (e) => setFields({ ...fields, [name]: e.target.type === 'checkbox' ? e.target.checked : e.target.value });
  const submit = async (event) => {
    event.preventDefault();
    const properties = {};
    if (fields.type) properties.contentType = fields.type;
    if (fields.expiry) properties.messageExpiryInterval = Number(fields.expiry);
    const user = {};
    for (const line of fields.properties.split('\n').filter((l) => l.trim())) {
      const at = line.indexOf('=');
      if (at < 1) {
        setSaid({ problem: 'A user property is a line NAME=VALUE.', done: '' });
        return;
      }
      const name = line.slice(0, at);
      user[name] = [...(user[name] || []), line.slice(at + 1)];
    }
    if (Object.keys(user).length > 0) properties.userProperties = user;
    try {
      await publish(fields.topic, utf8(fields.payload), { qos: Number(fields.qos), retain: fields.retain, properties });
      setSaid({ problem: '', done: fields.qos === '0' ? 'Sent.' : `The server has taken it at ${clock(Date.now()).slice(11)}.` });
    } catch (err) {
      setSaid({ problem: `It is not published: ${err.message}.`, done: '' });
    }
  };
  return html`<form class="card editor" onSubmit=${submit}>
    <h2>Publish</h2>
    <label>Topic <input type="text" required value=${fields.topic} onInput=${set('topic')} spellcheck="false" autocapitalize="off" autocomplete="off" /></label>
    <label>Payload <textarea rows="4" value=${fields.payload} onInput=${set('payload')} spellcheck="false"></textarea></label>
    <div class="row">
      <label class="inline">QoS <select onChange=${set('qos')}>${['0', '1', '2'].map((q) => html`<option key=${q} value=${q} selected=${q === fields.qos}>${q}</option>`)}</select></label>
      <label class="inline"><input type="checkbox" checked=${fields.retain} onChange=${set('retain')} /> retain</label>
    </div>
    <details><summary>Properties</summary>
      <label>Content Type <input type="text" value=${fields.type} onInput=${set('type')} /></label>
      <label>Message Expiry, in seconds <input type="number" min="0" max="4294967295" value=${fields.expiry} onInput=${set('expiry')} /></label>
      <label>User properties, a line NAME=VALUE for each <textarea rows="2" value=${fields.properties} onInput=${set('properties')} spellcheck="false"></textarea></label>
    </details>
    <${Problem} text=${said.problem} />
    <div class="row end"><span class="muted small" role="status">${said.done}</span><button type="submit" class="main">Publish</button></div>
  </form>`;
}

// Branch is a level of the tree: its own retained message, and the levels below it.
function Branch({ name, node, open }) {
  const inner = [...node.below].sort(([a], [b]) => (a < b ? -1 : 1));
  const own = node.message && html`<span class="payload"> ${preview(node.message.payload)}</span>`;
  if (inner.length === 0) return html`<li class="leaf"><bdi>${name || '(empty level)'}</bdi>${own}</li>`;
  return html`<li><details open=${open}><summary><bdi>${name || '(empty level)'}</bdi> <span class="muted">${node.count}</span>${own}</summary>
    <ul>${inner.map(([n, child]) => html`<${Branch} key=${n} name=${n} node=${child} open=${inner.length === 1} />`)}</ul>
  </details></li>`;
}

const newNode = () => ({ below: new Map(), message: null, count: 0 });

function Retained() {
  const [filter, setFilter] = useState('#');
  const [active, setActive] = useState('');
  const [problem, setProblem] = useState('');
  const [, render] = useState(0);
  const topics = useRef(new Map());
  const more = useRef(0);
  useEffect(() => {
    if (!active) return undefined;
    topics.current = new Map();
    more.current = 0;
    let dirty = true;
    const end = subscribe(active, 1, (topic, payload, packet) => {
      if (!packet.retain) return;
      dirty = true;
      if (payload.length === 0) topics.current.delete(topic);
      else if (topics.current.has(topic) || topics.current.size < mostRetained) topics.current.set(topic, { payload: start(payload, 256).slice() });
      else more.current++;
    }, (reason) => setProblem(reason ? `The subscription is refused: ${reason}.` : ''));
    const paint = setInterval(() => {
      if (dirty) render((n) => n + 1);
      dirty = false;
    }, repaint);
    return () => {
      end();
      clearInterval(paint);
    };
  }, [active]);
  const root = newNode();
  for (const [topic, message] of topics.current) {
    let node = root;
    node.count++;
    for (const level of topic.split('/')) {
      if (!node.below.has(level)) node.below.set(level, newNode());
      node = node.below.get(level);
      node.count++;
    }
    node.message = message;
  }
  const submit = (event) => {
    event.preventDefault();
    setProblem('');
    setActive(filter);
  };
  return html`<section class="card">
    <h2>Retained messages</h2>
    <form class="row" onSubmit=${submit}>
      <label class="grow"><span class="unseen">Topic filter of retained messages</span><input type="text" required value=${filter} onInput=${(e) => setFilter(e.target.value)} spellcheck="false" autocapitalize="off" autocomplete="off" /></label>
      <button type="submit">Show</button>
    </form>
    <${Problem} text=${problem} />
    ${active && html`<p class="muted small">${topics.current.size.toLocaleString('en')} topics${more.current > 0 ? `, and ${more.current.toLocaleString('en')} messages of others: choose a narrower filter` : ''}.</p>
    <ul class="tree">${[...root.below].sort(([a], [b]) => (a < b ? -1 : 1)).map(([n, child]) => html`<${Branch} key=${n} name=${n} node=${child} open=${root.below.size < 4} />`)}</ul>`}
  </section>`;
}

export const Topics = () => html`<div>
  <h1>Topics</h1>
  <div class="two"><${Subscribe} /><div><${Publish} /><${Retained} /></div></div>
</div>`;
