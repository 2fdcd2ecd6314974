// The overview: what is wrong, figures, charts, and bounds that fill up.

import { html, useEffect, useState } from '../vendor/preact-htm.js';
import { count, seconds, size } from './bytes.js';
import { onSample, quantiles, rates, samples, status } from './metrics.js';
import { Chart, inBytes, Problem, useConnection } from './ui.js';

// The bounds: metric, its bound's metric, name, setting, and how a figure is written.
const bounds = [
  ['holdfast_store_keys', 'holdfast_store_keys_max', 'Keys', '--max-keys', count],
  ['holdfast_store_bytes', 'holdfast_store_bytes_max', 'Bytes of keys and values', '--max-store-bytes', size],
  ['holdfast_connections', 'holdfast_connections_max', 'Connections', '--max-connections', count],
  ['holdfast_sessions', 'holdfast_sessions_max', 'Sessions', '--max-sessions', count],
  ['holdfast_queued_disk_bytes', 'holdfast_queued_disk_bytes_max', 'Queues on disk', '--max-total-queued-bytes', size],
  ['holdfast_retained_messages', 'holdfast_retained_messages_max', 'Retained messages', '--max-retained-messages', count],
  ['holdfast_retained_bytes', 'holdfast_retained_bytes_max', 'Bytes of retained messages', '--max-retained-bytes', size],
  ['holdfast_memory_pool_bytes', 'holdfast_memory_pool_max_bytes', 'Memory for clients', '--max-memory', size],
  ['process_resident_memory_bytes', 'holdfast_memory_max_bytes', 'Memory of the process', '--max-memory', size],
  ['holdfast_store_remembered_bytes', 'holdfast_store_remembered_bytes_max', 'Remembered messages', '--max-remembered-bytes', size],
  ['holdfast_timers', 'holdfast_timers_max', 'Timers', '--max-timers', count],
  ['holdfast_timer_bytes', 'holdfast_timer_bytes_max', 'Bytes of timers', '--max-timer-bytes', size],
  ['process_open_fds', 'process_max_fds', 'Open files', 'LimitNOFILE, ulimit -n', count],
];

const fills = (sample) =>
  bounds
    .map(([name, most, title, setting, format]) => ({ title, setting, format, value: sample.get(name), most: sample.get(most) }))
    .filter((b) => b.most > 0)
    .map((b) => ({ ...b, share: b.value / b.most }))
    .sort((a, b) => b.share - a.share);

const were = (n, one, many = `${one}s`) => (n === 1 ? `1 ${one} was` : `${count(n)} ${many} were`);

// What has grown in the last five minutes and should not have.
const troubles = [
  ['holdfast_messages_dropped_total', { reason: 'full' }, (n) => `${were(n, 'message')} dropped, because a subscriber did not take them in time`],
  ['holdfast_publishes_rejected_total', {}, (n) => `${were(n, 'publish', 'publishes')} refused at a bound`],
  ['holdfast_store_quota_errors_total', {}, (n) => `${were(n, 'request to the store', 'requests to the store')} refused by a quota`],
  ['holdfast_sessions_ended_total', { reason: 'queue_full' }, (n) => `${were(n, 'session')} ended, because the queue was full`],
  ['holdfast_memory_refused_total', {}, (n) => `memory was refused ${n === 1 ? 'once' : `${count(n)} times`}`],
  ['holdfast_logins_failed_total', {}, (n) => `${n === 1 ? '1 login' : `${count(n)} logins`} failed`],
];

// verdict is one sentence on the state of the server: {level, text}.
export function verdict(phase) {
  const last = samples[samples.length - 1];
  if (status.unready) return { level: 'bad', text: `The server does not accept clients: ${status.unready}.` };
  if (phase === 'away') return { level: 'bad', text: 'The server does not answer; the figures below are the last that it gave.' };
  if (!last) return { level: 'none', text: status.problem || 'Reading the figures of the server …' };
  if (last.get('holdfast_disk_low') > 0) return { level: 'bad', text: 'The disk is nearly full: the server refuses new data, and works on with what there is (--disk-reserve).' };
  const full = fills(last).filter((b) => b.share >= 0.8);
  if (full.length > 0) {
    const named = full.map((b) => `${b.title.toLowerCase()} ${Math.floor(100 * b.share)} % of the bound (${b.setting})`).join(', ');
    return { level: full[0].share >= 0.95 ? 'bad' : 'warn', text: `Bounds fill up: ${named}.` };
  }
  if (last.get('holdfast_store_clock_ahead_seconds') > 5) return { level: 'warn', text: `Versions are ${seconds(last.get('holdfast_store_clock_ahead_seconds'))} ahead of the machine's clock: a client's clock runs fast.` };
  for (const [name, labels, say] of troubles) {
    const grown = last.get(name, labels) - samples[0].get(name, labels);
    if (grown > 0) return { level: 'warn', text: `In the last ${seconds(Math.max(1, (last.at - samples[0].at) / 1000))} ${say(grown)}.` };
  }
  return { level: 'good', text: 'Nothing is wrong: the server accepts clients, and no bound is close.' };
}

const commands = ['GET', 'SET', 'TXN', 'SCAN'];

function Figures() {
  const last = samples[samples.length - 1];
  const times = samples.slice(1).map((s) => s.at);
  const rest = (s) => s.get('holdfast_store_commands_total') - commands.reduce((sum, c) => sum + s.get('holdfast_store_commands_total', { command: c }), 0);
  const perSecond = (v) => count(v < 10 ? Math.round(v * 10) / 10 : Math.round(v));
  const tiles = [
    ['Keys', count(last.get('holdfast_store_keys'))],
    ['Connections', count(last.get('holdfast_connections'))],
    ['Sessions', count(last.get('holdfast_sessions'))],
    ['Subscriptions', count(last.get('holdfast_subscriptions'))],
    ['Queued', count(last.get('holdfast_queued_messages'))],
    ['Free on disk', size(last.get('holdfast_disk_free_bytes'))],
    ['Runs for', seconds(last.get('holdfast_uptime_seconds'))],
  ];
  return html`
    <dl class="tiles">${tiles.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <div class="charts">
      <${Chart} title="Messages per second" times=${times} format=${perSecond} series=${[
        { name: 'in', values: rates((s) => s.get('holdfast_messages_received_total')) },
        { name: 'out', values: rates((s) => s.get('holdfast_messages_sent_total')) },
      ]} />
      <${Chart} title="Requests per second" times=${times} format=${perSecond} series=${[
        ...commands.map((command) => ({ name: command, values: rates((s) => s.get('holdfast_store_commands_total', { command })) })),
        { name: 'others', values: rates(rest) },
      ]} />
      <${Chart} title="Time of requests" times=${times} format=${seconds} series=${[
        { name: 'half within', values: quantiles('holdfast_store_command_seconds', {}, 0.5) },
        { name: '99 % within', values: quantiles('holdfast_store_command_seconds', {}, 0.99), dashed: true },
      ]} />
      <${Chart} title="Time of an fsync" times=${times} format=${seconds} series=${[
        { name: 'half within', values: quantiles('holdfast_journal_fsync_seconds', {}, 0.5) },
        { name: '99 % within', values: quantiles('holdfast_journal_fsync_seconds', {}, 0.99), dashed: true },
      ]} />
      <${Chart} title="Memory" times=${times} format=${size} steps=${inBytes} series=${[
        { name: 'of the process', values: samples.slice(1).map((s) => s.get('process_resident_memory_bytes')) },
        { name: 'for clients', values: samples.slice(1).map((s) => s.get('holdfast_memory_pool_bytes')) },
      ]} />
      <${Chart} title="Clients" times=${times} format=${count} series=${[
        { name: 'connections', values: samples.slice(1).map((s) => s.get('holdfast_connections')) },
        { name: 'sessions', values: samples.slice(1).map((s) => s.get('holdfast_sessions')), dashed: true },
      ]} />
    </div>
    <section class="card">
        <h2>Bounds</h2>
        <ul class="bounds">${fills(last).map((b) => html`<li key=${b.title}>
          <span class="what" title=${`${b.title} ${b.setting}`}>${b.title} <span class="muted">${b.setting}</span></span>
          <span class="much">${b.format(b.value)} of ${b.format(b.most)}</span>
          <meter min="0" max="1" high="0.8" optimum="0" value=${Math.min(1, b.share)} aria-label=${b.title}></meter>
        </li>`)}</ul>
    </section>
    <p class="muted small">Holdfast ${[...last.by('holdfast_build_info', 'version').keys()][0]}. Charts show up to the last five minutes, from /metrics, every two seconds. The time of one request in 64 of a connection is taken; times are upper bounds, each twice the one below it.</p>`;
}

export function Overview() {
  const { phase } = useConnection();
  const [, render] = useState(0);
  useEffect(() => onSample(() => render((n) => n + 1)), []);
  const { level, text } = verdict(phase);
  return html`<div>
    <h1 class="unseen">Overview</h1>
    <p class=${`verdict ${level}`} role="status"><span class="lamp" aria-hidden="true"></span>${text}</p>
    <${Problem} text=${samples.length > 0 && phase !== 'away' ? status.problem : ''} />
    ${samples.length > 1 ? html`<${Figures} />` : samples.length === 1 && html`<p class="muted">Rates follow with the second reading.</p>`}
  </div>`;
}
