// What the server counts: /metrics of the admin listener, read every two seconds while the page
// is visible, kept for five minutes.

import { authorization, state } from './connection.js';

const interval = 2000; // ms
const most = 150; // samples

// samples are {at, get, by}: at in ms; get(name, labels) is the sum of the figures of that name
// which have these labels; by(name, label) is a map from the label's values to sums.
export const samples = [];

// status says why there are no figures; empty: there are.
export const status = { problem: '', unready: '' };

const listeners = new Set();

export function onSample(f) {
  listeners.add(f);
  return () => listeners.delete(f);
}

// parse reads the text format of Prometheus, of what the page shows.
export function parse(text, at) {
  const families = new Map();
  for (const line of text.split('\n')) {
    if (!line || line[0] === '#') continue;
    const space = line.lastIndexOf(' ');
    const brace = line.indexOf('{');
    const name = line.slice(0, brace < 0 ? space : brace);
    if (!name.startsWith('holdfast_') && !name.startsWith('process_')) continue;
    const labels = {};
    if (brace > 0) for (const m of line.slice(brace + 1, space).matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[m[1]] = m[2];
    if (!families.has(name)) families.set(name, []);
    families.get(name).push([labels, Number(line.slice(space + 1).replace('+Inf', 'Infinity'))]);
  }
  const fits = (labels, wanted) => Object.entries(wanted).every(([k, v]) => labels[k] === v);
  return {
    at,
    has: (name) => families.has(name),
    get: (name, wanted = {}) => (families.get(name) || []).reduce((sum, [labels, value]) => (fits(labels, wanted) ? sum + value : sum), 0),
    by: (name, label) => {
      const out = new Map();
      for (const [labels, value] of families.get(name) || []) out.set(labels[label], (out.get(labels[label]) || 0) + value);
      return out;
    },
  };
}

// rates are, for each sample but the first, how much f(sample) has grown per second.
export function rates(f) {
  return samples.slice(1).map((s, i) => Math.max(0, (f(s) - f(samples[i])) / ((s.at - samples[i].at) / 1000)));
}

// quantiles of a histogram are those of what was counted in the last so many samples before each;
// null: nothing was.
export function quantiles(name, labels, q, window = 15) {
  const buckets = (s) => {
    const out = [];
    for (const [le, n] of bucketsOf(s, name, labels)) out.push([le === '+Inf' ? Infinity : Number(le), n]);
    return out.sort((a, b) => a[0] - b[0]);
  };
  const all = samples.map(buckets);
  return all.slice(1).map((now, i) => {
    const before = new Map(all[Math.max(0, i + 1 - window)]);
    const grown = now.map(([le, n]) => [le, n - (before.get(le) || 0)]);
    const total = grown.length ? grown[grown.length - 1][1] : 0;
    if (total <= 0) return null;
    const found = grown.find(([, n]) => n >= q * total);
    return found[0] === Infinity ? grown[grown.length - 2]?.[0] ?? null : found[0];
  });
}

function bucketsOf(sample, name, labels) {
  if (!sample.cache) sample.cache = new Map();
  const id = name + JSON.stringify(labels);
  if (!sample.cache.has(id)) {
    const out = new Map();
    for (const le of sample.by(`${name}_bucket`, 'le').keys()) out.set(le, sample.get(`${name}_bucket`, { ...labels, le }));
    sample.cache.set(id, out);
  }
  return sample.cache.get(id);
}

async function read() {
  const asked = authorization();
  const options = { cache: 'no-store', credentials: asked ? 'omit' : 'same-origin', headers: asked ? { Authorization: asked } : {}, signal: AbortSignal.timeout(8000) };
  const ready = await fetch('/readyz', { cache: 'no-store', credentials: 'omit', signal: AbortSignal.timeout(8000) });
  status.unready = ready.ok ? '' : (await ready.text()).trim().replace(/^not ready:? ?/, '') || 'the server is not ready';
  if (state.phase === 'signin') return;
  const response = await fetch('/metrics', options);
  if (response.status === 401 || response.status === 403) {
    status.problem = 'The figures are for administrators: for principals of a group of the policy with the quota reserve.';
    return;
  }
  if (!response.ok) {
    status.problem = (await response.text()).trim();
    return;
  }
  const sample = parse(await response.text(), Date.now());
  const last = samples[samples.length - 1];
  if (last && sample.get('holdfast_uptime_seconds') < last.get('holdfast_uptime_seconds')) samples.length = 0; // another process: it counts from 0
  samples.push(sample);
  if (samples.length > most) samples.shift();
  status.problem = '';
}

async function loop() {
  if (!document.hidden) {
    try {
      await read();
    } catch {
      status.problem = 'The server does not answer.';
    }
    for (const f of [...listeners]) f();
  }
  setTimeout(loop, interval);
}

loop();
