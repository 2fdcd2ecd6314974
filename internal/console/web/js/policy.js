// Policy: what a client may do, and why, by the HTTP API.

import { html, useState } from '../vendor/preact-htm.js';
import { ask } from './api.js';
import { Failed } from './ui.js';

const fields = [
  ['client', 'Client ID', 'press-4'],
  ['username', 'User name that it has proven', 'none: it is anonymous'],
  ['attributes', 'Attributes of its certificate, token or password entry', 'role=operator, site=7'],
  ['topic', 'Topic to publish to, or filter to subscribe to', 'plant/4/speed'],
  ['key', 'Key to read and write', 'limits/4'],
];

function Answer({ answer }) {
  const [first, ...why] = answer.lines;
  return html`<li class=${answer.allowed ? 'answer allowed' : 'answer denied'}>
    <p><b>${answer.allowed ? 'Allowed' : 'Denied'}</b>: ${answer.action}${answer.name && html` <bdi class="topic">${answer.name}</bdi>`}</p>
    <p class="muted">${first}.</p>
    ${why.length > 0 && html`<ul class="plain muted">${why.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
  </li>`;
}

export function Policy() {
  const [asked, setAsked] = useState({ client: '', username: '', attributes: '', topic: '', key: '' });
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      setFound(await ask('GET', 'policy', asked));
      setProblem(null);
    } catch (err) {
      setFound(null);
      setProblem(err);
    }
  };
  return html`<div>
    <h1>Policy</h1>
    <p class="muted">What the policy in force allows a client, and which rule says so. The client need not be connected.</p>
    <form class="card editor" onSubmit=${submit}>
      ${fields.map(([name, title, example]) => html`<label key=${name}>${title} <input type="text" name=${name} value=${asked[name]} onInput=${(e) => setAsked({ ...asked, [name]: e.target.value })} placeholder=${example} spellcheck="false" autocapitalize="off" autocomplete="off" /></label>`)}
      <div class="row end"><button type="submit" class="main">Explain</button></div>
    </form>
    <${Failed} what="It cannot be explained" err=${problem} />
    <div role="status">${found && html`
      <p class="muted">${found.file ? html`By <bdi>${found.file}</bdi>: rules ${found.rules}, groups ${found.groups}.` : 'There is no policy file: every client that the server accepts may do everything.'}</p>
      <ul class="answers">${found.answers.map((a) => html`<${Answer} key=${a.action} answer=${a} />`)}</ul>`}</div>
    ${found?.quotas.length > 0 && html`<section class="card">
      <h2>What its principal may hold</h2>
      <ul class="plain">${found.quotas.map((line) => html`<li key=${line}>${line}</li>`)}</ul>
    </section>`}
  </div>`;
}
