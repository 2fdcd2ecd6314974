// Pieces that several pages use.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../vendor/preact-htm.js';
import { label } from './bytes.js';
import * as connection from './connection.js';

// useConnection renders its component again when the connection's state changes.
export function useConnection() {
  const [, render] = useState(0);
  useEffect(() => connection.onChange(() => render((n) => n + 1)), []);
  return connection.state;
}

// useNow renders its component again every so many ms, and is the time in ms.
export function useNow(every = 1000) {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

// Name shows the bytes of a key or an identifier in one line.
export function Name({ bytes, size }) {
  const shown = label(bytes, size);
  return html`<bdi class=${shown.hex ? 'name hex' : 'name'}>${shown.hex && html`<span class="tag">hex</span> `}${shown.text}</bdi>`;
}

// Problem says what went wrong.
export const Problem = ({ text }) => text && html`<p class="problem" role="alert">${text}</p>`;

// Failed says what could not be done, and why; a person who has not signed in can do so.
export const Failed = ({ what, err }) => err && html`<div class="problem" role="alert">
  ${what}: ${err.message}.
  ${err.status === 401 && html` <button type="button" onClick=${connection.signOut}>Sign in</button>`}
</div>`;

// usePoll calls load now, again every so many ms while the page is visible, and when one of the
// values has changed. A call begins when the one before has ended.
export function usePoll(load, every, values) {
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    let timer = 0;
    let ended = false;
    const turn = async () => {
      if (!document.hidden) await latest.current();
      if (!ended) timer = setTimeout(turn, every);
    };
    turn();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, values);
}

// Confirm asks before something is done that cannot be undone. onClose gets whether to do it.
export function Confirm({ question, action, onClose }) {
  const dialog = useRef();
  useLayoutEffect(() => { // from the moment that it is there no key reaches the page behind it
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before?.focus();
  }, []);
  const escape = (event) => {
    event.preventDefault();
    onClose(false);
  };
  return html`<dialog ref=${dialog} class="confirm" aria-labelledby="question" onCancel=${escape}>
    <p id="question">${question}</p>
    <div class="row end">
      <button type="button" autofocus onClick=${() => onClose(false)}>Cancel</button>
      <button type="button" class="danger" onClick=${() => onClose(true)}>${action}</button>
    </div>
  </dialog>`;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// inBytes are the steps of an axis of bytes: 16 MiB, 32 MiB, …
export const inBytes = Array.from({ length: 50 }, (_, n) => 2 ** n);

// Chart draws series over time. times are in ms; series are {name, values, dashed}; format makes
// text of a value, and steps, which may be left out, are those that the axis may have. A screen
// reader gets the last values.
export function Chart({ title, times, series, format, steps, empty }) {
  const place = useRef();
  const plot = useRef(null);
  const shape = series.map((s) => s.name).join('|');
  const [scheme, setScheme] = useState(0);
  useEffect(() => {
    const query = matchMedia('(prefers-color-scheme: dark)');
    const changed = () => setScheme((n) => n + 1);
    query.addEventListener('change', changed);
    return () => query.removeEventListener('change', changed);
  }, []);
  useLayoutEffect(() => {
    const axis = { stroke: colour('--muted'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
    const options = {
      width: place.current.clientWidth || 300, height: 130, legend: { show: false }, padding: [8, 26, 0, 0],
      cursor: { show: false }, scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
      axes: [
        { ...axis, size: 26, space: 70, values: (u, splits) => splits.map((s) => new Date(s * 1000).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' })) },
        { ...axis, size: 58, space: 34, ...(steps && { incrs: steps }), values: (u, splits) => splits.map((v) => format(v)) },
      ],
      series: [{}, ...series.map((s, i) => ({ stroke: colour(`--series-${i + 1}`), width: 1.75, dash: s.dashed ? [5, 4] : undefined, spanGaps: false, points: { show: false } }))],
    };
    plot.current = new uPlot(options, [[], ...series.map(() => [])], place.current);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: place.current.clientWidth, height: 130 }));
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape, scheme]);
  useLayoutEffect(() => plot.current?.setData([times.map((t) => t / 1000), ...series.map((s) => s.values)]), [times, scheme, shape]);
  const lasts = series.map((s) => {
    const last = s.values[s.values.length - 1];
    return last === null || last === undefined ? '–' : format(last);
  });
  return html`<section class="card chart">
    <h2>${title}</h2>
    <ul class="legend">${series.map((s, i) => html`<li key=${s.name}><span class=${`swatch s${i + 1}`}></span>${s.name} <b>${lasts[i]}</b></li>`)}</ul>
    <div class="plot" ref=${place} role="img" aria-label=${`${title}: ${series.map((s, i) => `${s.name} ${lasts[i]}`).join(', ')}`}></div>
    ${empty && html`<p class="muted small">${empty}</p>`}
  </section>`;
}
