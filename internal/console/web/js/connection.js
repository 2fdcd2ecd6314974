// The page's MQTT 5 connection to the server that has served it, and requests to the store
// over it (docs/protocol.md). There is one for the page. It connects again by itself.

import * as bundle from '../vendor/mqtt.js';
import { hex, text, utf8 } from './bytes.js';

const mqtt = bundle.connect ? bundle : bundle.default;

const requests = 'statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke';
const notifications = 'clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/';
const requestTimeout = 20000; // ms
const mostUnderWay = 32; // requests; others wait
const shortestPause = 500; // ms, before the page connects again
const longestPause = 5000;

// What the page shows of the connection. phase is one of connecting, connected, signin (the
// server asks for credentials), and away (it does not answer).
export const state = { phase: 'connecting', reason: '', user: '', client: '' };

const listeners = new Set();

// onChange calls f when state has changed, until the function that it returns is called.
export function onChange(f) {
  listeners.add(f);
  return () => listeners.delete(f);
}

function change(fields) {
  Object.assign(state, fields);
  for (const f of [...listeners]) f();
}

let credentials = null; // of the person who has signed in; in the memory of this page alone
let connection = null; // the MQTT client
let pause = shortestPause;
let timer = 0;
let clockOffset = 0; // ms by which the server's clock is ahead of this machine's

const waiting = new Map(); // correlation -> {resolve, reject, timer}
const queue = []; // requests that have no place yet
let underWay = 0;
let correlations = 0;

// authorization is the header with which requests over HTTP prove the same as the connection.
export function authorization() {
  if (!credentials) return null;
  if (!credentials.user) return 'Bearer ' + credentials.password;
  return 'Basic ' + btoa(String.fromCharCode(...utf8(`${credentials.user}:${credentials.password}`)));
}

// signIn connects with a user and a password, or with a token as the password.
export function signIn(user, password) {
  credentials = { user, password };
  pause = shortestPause;
  connect();
}

export function signOut() {
  credentials = null;
  end();
  change({ phase: 'signin', reason: '', user: '' });
}

function end() {
  clearTimeout(timer);
  const old = connection;
  connection = null;
  if (old) old.end(!old.connected);
  fail('the connection has ended');
}

// fail ends all requests, also those that have not been sent: what became of the former is unknown.
function fail(reason) {
  for (const request of [...waiting.values(), ...queue.splice(0)]) {
    clearTimeout(request.timer);
    request.reject(new Error(reason));
  }
  waiting.clear();
  underWay = 0;
}

const responseTopic = () => `clients/${state.client}/services/statestore/_any_/command/invoke/response`;

export function connect() {
  end();
  const scheme = location.protocol === 'https:' ? 'wss' : 'ws';
  const random = 'console-' + hex(crypto.getRandomValues(new Uint8Array(6)));
  const client = credentials?.user ? `${credentials.user}:${random}` : random; // as the program's own commands have it
  change({ phase: state.phase === 'away' ? 'away' : 'connecting', client, user: credentials ? credentials.user || 'token' : '' });
  const options = {
    protocolVersion: 5, clientId: client, clean: true, keepalive: 20, reconnectPeriod: 0, connectTimeout: 15000, resubscribe: false,
    timerVariant: 'native', properties: { sessionExpiryInterval: 0, receiveMaximum: 200 },
  };
  if (credentials) {
    if (credentials.user) options.username = credentials.user;
    options.password = credentials.password;
  }
  const mine = mqtt.connect(`${scheme}://${location.host}/mqtt`, options);
  connection = mine;
  let refusal = null; // why the server has ended it
  mine.on('packetreceive', (packet) => {
    if ((packet.cmd === 'connack' && packet.reasonCode > 0) || packet.cmd === 'disconnect') {
      refusal = { code: packet.reasonCode, reason: packet.properties?.reasonString || '' };
    }
  });
  mine.on('error', () => {}); // close follows
  mine.on('connect', () => {
    if (connection !== mine) return;
    pause = shortestPause;
    mine.subscribe(responseTopic(), { qos: 1, nl: true }, (err, granted) => {
      if (connection !== mine) return;
      const refused = err || !granted?.[0] || granted[0].qos >= 0x80;
      change({ phase: 'connected', reason: refused ? 'The policy does not let you receive answers of the store: keys cannot be shown.' : '' });
      for (const key of watched.keys()) register(key);
      for (const f of [...filters.keys()]) subscribeAgain(f);
    });
  });
  mine.on('message', (topic, payload, packet) => {
    if (connection === mine) receive(topic, payload, packet);
  });
  mine.on('close', () => {
    if (connection === mine) lost(refusal);
  });
}

// lost says why there is no connection, and connects again unless credentials are needed.
async function lost(refusal) {
  end();
  if (refusal && [0x86, 0x87, 0x8c].includes(refusal.code)) {
    const reason = credentials ? `The server has refused these credentials${refusal.reason ? ': ' + refusal.reason : ''}.` : '';
    change({ phase: 'signin', reason });
    return;
  }
  timer = setTimeout(connect, pause * (0.8 + 0.4 * Math.random()));
  pause = Math.min(2 * pause, longestPause);
  let reason = refusal ? refusal.reason || `the server has ended the connection (0x${refusal.code.toString(16)})` : '';
  change({ phase: 'away', reason });
  if (refusal) return;
  reason = await whyAway();
  if (state.phase === 'away') change({ reason });
}

// whyAway asks the admin listener, which answers before the server accepts clients.
async function whyAway() {
  try {
    const response = await fetch('/readyz', { cache: 'no-store', credentials: 'omit', signal: AbortSignal.timeout(4000) });
    const answer = (await response.text()).trim();
    if (!response.ok) return answer;
    const refusal = await fetch('/mqtt', { cache: 'no-store', credentials: 'omit', signal: AbortSignal.timeout(4000) });
    return refusal.status === 503 ? (await refusal.text()).trim() : 'it answers, and has ended the connection of this page';
  } catch {
    return 'it does not answer';
  }
}

// Payloads of the store (docs/protocol.md, section 3).

function encode(words) {
  const parts = [utf8(`*${words.length}\r\n`)];
  for (const word of words) {
    const bytes = typeof word === 'string' ? utf8(word) : word;
    parts.push(utf8(`$${bytes.length}\r\n`), bytes, utf8('\r\n'));
  }
  const out = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

// StoreError is an error that the store has replied.
export class StoreError extends Error {}

// decode makes a number, an array, bytes (of strings of both kinds) or null of a payload.
function decode(bytes) {
  let at = 0;
  const line = () => {
    const begin = at;
    while (at < bytes.length && bytes[at] !== 13) at++;
    const out = text(bytes.subarray(begin, at));
    at += 2;
    return out;
  };
  const next = () => {
    const head = line();
    const rest = head.slice(1);
    switch (head[0]) {
      case '+':
        return utf8(rest);
      case '-':
        if (rest === '1') return -1; // a condition that is not met, with --wire documented
        throw new StoreError(rest.replace(/^ERR:? /, ''));
      case ':':
        return Number(rest);
      case '$': {
        const length = Number(rest);
        if (length < 0) return null;
        const out = bytes.slice(at, at + length);
        at += length + 2;
        return out;
      }
      case '*': {
        const out = [];
        for (let n = Number(rest); n > 0; n--) out.push(next());
        return out;
      }
    }
    throw new StoreError('the answer of the store cannot be read');
  };
  return next();
}

// request sends a command, an array of strings and bytes, and returns its {reply, version}. It
// throws a StoreError if the store refuses it, and another Error if there is no answer: then
// the command may have been executed.
export async function request(words, options = {}) {
  try {
    return await send(words, options);
  } catch (err) {
    if (!(err instanceof StoreError) || !err.serverTime) throw err;
    clockOffset = err.serverTime - Date.now();
    return send(words, options);
  }
}

function send(words, { token } = {}) {
  return new Promise((resolve, reject) => {
    if (state.phase !== 'connected') {
      reject(new Error('there is no connection to the server'));
      return;
    }
    queue.push({ words, token, resolve, reject });
    sendNext();
  });
}

function sendNext() {
  while (connection && underWay < mostUnderWay && queue.length > 0) {
    const item = queue.shift();
    const correlation = String(++correlations);
    const done = (settle, value) => {
      if (!waiting.delete(correlation)) return;
      clearTimeout(item.timer);
      underWay--;
      settle(value);
      sendNext();
    };
    item.answer = (packet, payload) => {
      const properties = packet.properties?.userProperties || {};
      try {
        done(item.resolve, { reply: decode(payload), version: properties.__ts || '' });
      } catch (err) {
        err.serverTime = Number(properties['holdfast-time'] || 0);
        if (properties['holdfast-quota']) err.message += ` (--${properties['holdfast-quota']})`;
        done(item.reject, err);
      }
    };
    item.timer = setTimeout(() => done(item.reject, new Error('the server has not answered in time')), requestTimeout);
    waiting.set(correlation, item);
    underWay++;
    const userProperties = { __ts: `${Date.now() + Math.round(clockOffset)}:0:console` };
    if (item.token) userProperties.__ft = item.token;
    connection.publish(requests, encode(item.words), { qos: 1, properties: { responseTopic: responseTopic(), correlationData: correlation, userProperties } }, (err, packet) => {
      if (err) done(item.reject, new Error(denied(err)));
      else if (packet?.reasonCode >= 0x80) done(item.reject, new Error(denied({ code: packet.reasonCode })));
    });
  }
}

function denied(err) {
  if (err.code === 0x87) return 'the policy does not allow it';
  if (err.code === 0x97) return 'a quota has been exceeded';
  return err.message || `the server has refused it (0x${err.code.toString(16)})`;
}

function receive(topic, payload, packet) {
  if (topic.startsWith(notifications)) {
    const [, key] = topic.slice(notifications.length).split('/command/notify/');
    notified(key, payload, packet);
  } else if (topic === responseTopic()) {
    waiting.get(String(packet.properties?.correlationData))?.answer(packet, payload);
  } else {
    for (const id of [packet.properties?.subscriptionIdentifier].flat()) for (const s of filters.values()) if (s.id === id) s.listener(topic, payload, packet);
  }
}

// Watched keys: upper-case hexadecimal key -> the functions that are called.
const watched = new Map();

function register(key) {
  const bytes = Uint8Array.from(key.match(/../g), (pair) => parseInt(pair, 16));
  request(['KEYNOTIFY', bytes]).catch(() => {}); // not allowed, too long, or too many: it is not live
}

// watch calls f({deleted, value, version}) at each change of a key, until the function that it
// returns is called.
export function watch(keyBytes, f) {
  const key = hex(keyBytes).toUpperCase();
  if (!watched.has(key)) {
    watched.set(key, new Set());
    if (state.phase === 'connected') register(key);
  }
  watched.get(key).add(f);
  return () => {
    const set = watched.get(key);
    set?.delete(f);
    if (set?.size === 0) {
      watched.delete(key);
      if (state.phase === 'connected') request(['KEYNOTIFY', keyBytes, 'STOP']).catch(() => {});
    }
  };
}

function notified(key, payload, packet) {
  const version = packet.properties?.userProperties?.__ts || '';
  let words;
  try {
    words = decode(payload);
  } catch {
    return;
  }
  const deleted = text(words[1]) !== 'SET';
  for (const f of [...(watched.get(key) || [])]) f({ deleted, value: deleted ? null : words[3], version });
}

// Subscriptions: a name of their own -> {id, filter, qos, listener, done}. Each has a
// Subscription Identifier, which says whose a message is.
const filters = new Map();
let subscriptions = 0;

function subscribeAgain(name) {
  const { id, filter, qos, done } = filters.get(name);
  connection.subscribe(filter, { qos, rap: true, properties: { subscriptionIdentifier: id } }, (err, granted) => {
    const code = err?.packet?.granted?.[0] ?? err?.code ?? granted?.[0]?.qos ?? 0x80;
    if (err && typeof code !== 'number') done(err.message);
    else done(err || code >= 0x80 ? denied({ code }) : '');
  });
}

// subscribe calls listener(topic, payload, packet) for each message until the function that it
// returns is called. done is called with what is wrong, or an empty string.
export function subscribe(filter, qos, listener, done) {
  const id = ++subscriptions;
  filters.set(id, { id, filter, qos, listener, done });
  if (state.phase === 'connected') subscribeAgain(id);
  return () => {
    filters.delete(id);
    const others = [...filters.values()].some((s) => s.filter === filter);
    if (state.phase === 'connected' && !others) connection.unsubscribe(filter);
  };
}

// publish publishes a message and returns when the server has taken it.
export function publish(topic, payload, options) {
  return new Promise((resolve, reject) => {
    if (state.phase !== 'connected') {
      reject(new Error('there is no connection to the server'));
      return;
    }
    connection.publish(topic, payload, options, (err, packet) => {
      if (err) reject(new Error(denied(err)));
      else if (packet?.reasonCode >= 0x80) reject(new Error(denied({ code: packet.reasonCode })));
      else resolve();
    });
  });
}
