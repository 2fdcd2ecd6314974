// Pages of keys, by SCAN (docs/protocol.md, section 7).

import { literal, preview, text, utf8 } from './bytes.js';
import { request } from './connection.js';

const mostRounds = 60; // requests for one page that finds little, before a person is asked

// row is what is kept of a key in a list: not its value.
function row([key, value, version, left, token]) {
  return {
    key, version: text(version), preview: value === null ? '' : preview(value), size: value === null ? null : value.length,
    expires: left < 0 ? null : Date.now() + left, token: token === null ? null : text(token), gone: false, changes: 0,
  };
}

function behind(key, last) {
  const common = Math.min(key.length, last.length);
  for (let i = 0; i < common; i++) if (key[i] !== last[i]) return key[i] > last[i];
  return key.length > last.length;
}

// pattern is what SCAN gets for what a person has typed: a text without * ? [ is a prefix.
export const patternOf = (typed) => (typed === '' ? '*' : /[*?[]/.test(typed) ? typed : typed + '*');

// page reads up to want rows that fits takes, from a place that an earlier page has returned as
// next; {} is the first. next is null behind the last one. stop ends the search early. make makes
// a row of what the store has replied of a key.
export async function page(pattern, from, want, fits = () => true, stop = () => false, make = row) {
  const rows = [];
  let { token, last } = from;
  for (let rounds = 1; ; rounds++) {
    const { reply } = await request(['SCAN', utf8(pattern), ...(token ? [token] : []), 'VALUES', 'DETAILS', 'BINARY']);
    for (const entry of reply[0]) {
      if (last && !behind(entry[0], last)) continue;
      if (rows.length === want) return { rows, next: { token, last } };
      last = entry[0];
      const made = make(entry);
      if (fits(made)) rows.push(made);
    }
    if (!reply[1]) return { rows, next: null };
    token = text(reply[1]);
    if (rows.length === want) return { rows, next: { token, last } };
    if (rounds >= mostRounds || stop()) return { rows, next: { token, last }, early: true };
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
