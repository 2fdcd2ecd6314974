// Pages of keys, by SCAN (docs/protocol.md, section 7).

import { literal, preview, text, utf8 } from './bytes.js';
import { request } from './connection.js';

// row is what is kept of a key in a list: not its value.
function row([key, value, version, left, token]) {
  return {
    key, version: text(version), preview: value === null ? '' : preview(value), size: value === null ? null : value.length,
    expires: left < 0 ? null : Date.now() + left, token: token === null ? null : text(token), gone: false, changes: 0,
  };
}

// behind says whether a key comes later than another one in the order of keys.
export function behind(key, last) {
  const common = Math.min(key.length, last.length);
  for (let i = 0; i < common; i++) if (key[i] !== last[i]) return key[i] > last[i];
  return key.length > last.length;
}

// pattern is what SCAN gets for what a person has typed: a text without * ? [ is a prefix.
export const patternOf = (typed) => (typed === '' ? '*' : /[*?[]/.test(typed) ? typed : typed + '*');

// page reads up to want rows that fits takes, from a place that an earlier page has returned as
// next; {} is the first. next is null behind the last one. make makes a row of what the store has
// replied of a key. After each request of which the page is not full, goOn gets how many keys the
// page has looked at, how many of them fit, and how many requests that took; if it returns false,
// the page ends early.
export async function page(pattern, from, want, { fits = () => true, make = row, goOn = () => true } = {}) {
  const rows = [];
  let { token, last } = from;
  let looked = 0;
  for (let requests = 1; ; requests++) {
    const { reply } = await request(['SCAN', utf8(pattern), ...(token ? [token] : []), 'VALUES', 'DETAILS', 'BINARY']);
    for (const entry of reply[0]) {
      if (last && !behind(entry[0], last)) continue;
      if (rows.length === want) return { rows, next: { token, last }, requests };
      last = entry[0];
      looked++;
      const made = make(entry);
      if (fits(made)) rows.push(made);
    }
    if (!reply[1]) return { rows, next: null, requests };
    token = text(reply[1]);
    if (rows.length === want) return { rows, next: { token, last }, requests };
    if (!goOn({ looked, found: rows.length, requests })) return { rows, next: { token, last }, requests, early: { looked, requests } };
  }
}

// one reads a key with all that is known of it: {value, version, expires, token}; null: there is
// no such key.
export async function one(key) {
  const pattern = literal(key);
  if (pattern.length > 1024) {
    const { reply, version } = await request(['GET', key]);
    return reply === null ? null : { value: reply, version, expires: undefined, token: undefined };
  }
  for (let token = null; ; ) {
    const { reply } = await request(['SCAN', pattern, ...(token ? [token] : []), 'VALUES', 'DETAILS', 'BINARY']);
    if (reply[0].length > 0) {
      const [, value, version, left, fence] = reply[0][0];
      return { value, version: text(version), expires: left < 0 ? null : Date.now() + left, token: fence === null ? null : text(fence) };
    }
    if (!reply[1]) return null;
    token = text(reply[1]);
  }
}
