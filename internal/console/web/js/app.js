// The page: header, navigation, and what the address asks for.

import { html, render, useEffect, useLayoutEffect, useRef, useState } from '../vendor/preact-htm.js';
import { fromAddress } from './bytes.js';
import { Client, Clients } from './clients.js';
import { Cluster } from './cluster.js';
import { connect, signIn, signOut } from './connection.js';
import { Demo } from './demo.js';
import { Key, NewKey } from './key.js';
import { Keys, Locks } from './keys.js';
import { Overview } from './overview.js';
import { Policy } from './policy.js';
import { Processors } from './processors.js';
import { Timers } from './timers.js';
import { Topics } from './topics.js';
import { Problem, useConnection } from './ui.js';

const pages = [['', 'Overview'], ['keys', 'Keys'], ['locks', 'Locks'], ['topics', 'Topics'], ['timers', 'Timers'], ['clients', 'Clients'], ['processors', 'Processors'], ['policy', 'Policy'], ['cluster', 'Cluster'], ['demo', 'Crash test']];

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// route is what an address asks for.
function route(hash) {
  const [, page = '', rest = ''] = hash.match(/^#\/([^/]*)(?:\/(.*))?$/s) || [];
  switch (page) {
    case 'keys':
      return { page, title: 'Keys', view: html`<${Keys} typed=${decoded(rest)} />` };
    case 'key':
      return { page: 'keys', title: 'Key', view: html`<${Key} name=${fromAddress(rest)} />` };
    case 'new':
      return { page: 'keys', title: 'New key', view: html`<${NewKey} />` };
    case 'locks':
      return { page, title: 'Locks', view: html`<${Locks} typed=${decoded(rest)} />` };
    case 'topics':
      return { page, title: 'Topics', view: html`<${Topics} />` };
    case 'clients':
      return { page, title: 'Clients', view: html`<${Clients} />` };
    case 'client':
      return { page: 'clients', title: 'Client', view: html`<${Client} id=${decoded(rest)} />` };
    case 'processors':
      return { page, title: 'Processors', view: html`<${Processors} />` };
    case 'demo':
      return { page, title: 'Crash test', view: html`<${Demo} />` };
    case 'policy':
      return { page, title: 'Policy', view: html`<${Policy} />` };
    case 'cluster':
      return { page, title: 'Cluster', view: html`<${Cluster} />` };
    case 'timers':
      return { page, title: 'Timers', view: html`<${Timers} />` };
  }
  return { page: '', title: 'Overview', view: html`<${Overview} />` };
}

const phases = { connecting: 'connecting', connected: 'connected', signin: 'not signed in', away: 'not connected' };

function SignIn({ reason }) {
  const [fields, setFields] = useState({ user: '', password: '' });
  const set = (name) => (e) => setFields({ ...fields, [name]: e.target.value });
  const submit = (event) => {
    event.preventDefault();
    signIn(fields.user, fields.password);
  };
  return html`<form class="card editor signin" onSubmit=${submit}>
    <h1>Sign in</h1>
    <p class="muted">The server asks its clients who they are. You see here what its policy lets you see.</p>
    <${Problem} text=${reason} />
    <label>User <span class="muted">(empty with a token)</span> <input type="text" name="user" autofocus autocomplete="username" value=${fields.user} onInput=${set('user')} autocapitalize="off" spellcheck="false" /></label>
    <label>Password or token <input type="password" name="password" required autocomplete="current-password" value=${fields.password} onInput=${set('password')} /></label>
    <div class="row end"><button type="submit" class="main">Sign in</button></div>
    <p class="muted small">They are kept in the memory of this page, until you close or reload it.</p>
  </form>`;
}

function App() {
  const connection = useConnection();
  const [hash, setHash] = useState(location.hash);
  const main = useRef();
  const first = useRef(true);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  const { page, title, view } = route(hash);
  useLayoutEffect(() => { // with the page, not after it is painted: a person may have a field of it by then
    document.title = `${title} – Holdfast`;
    const current = document.querySelector('nav a[aria-current]');
    if (current) { // on a phone the pages have no room beside each other
      const nav = current.parentElement;
      nav.scrollLeft = current.offsetLeft - nav.offsetLeft - (nav.clientWidth - current.offsetWidth) / 2;
    }
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
    scrollTo(0, 0);
  }, [hash]);
  const { phase, reason, user } = connection;
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); main.current.focus(); }}>To the content</a>
    <header>
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="24" height="24" />Holdfast</a>
      <nav aria-label="Pages">${pages.map(([p, name]) => html`<a key=${p} href=${`#/${p}`} aria-current=${p === page ? 'page' : null}>${name}</a>`)}</nav>
      <p class=${`state ${phase}`} role="status"><span class="lamp" aria-hidden="true"></span><span>${phases[phase]}${phase === 'connected' && user ? ` as ${user}` : ''}</span></p>
      ${phase === 'connected' && user && html`<button type="button" onClick=${signOut}>Sign out</button>`}
    </header>
    ${phase === 'away' && html`<p class="banner" role="alert"><b>No connection to the server</b>${reason ? `: ${reason}` : ''}. The page tries again by itself.</p>`}
    ${phase === 'connected' && reason && html`<p class="banner" role="alert">${reason}</p>`}
    <main id="main" tabindex="-1" ref=${main}>${phase === 'signin' ? html`<${SignIn} reason=${reason} />` : view}</main>`;
}

const root = document.getElementById('app');
root.textContent = '';
render(html`<${App} />`, root);
connect();
