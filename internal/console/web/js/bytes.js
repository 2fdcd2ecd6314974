// Bytes as people read them. Keys and values are bytes; nothing here makes markup of them.

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export const utf8 = (text) => encoder.encode(text);

// text is the string that the bytes are in UTF-8, or null if they are none.
export function text(bytes) {
  try {
    return decoder.decode(bytes);
  } catch {
    return null;
  }
}

// start is at most size bytes, cut before a character of UTF-8 that would be torn.
export function start(bytes, size) {
  if (bytes.length <= size) return bytes;
  let end = size;
  while (end > size - 4 && end > 0 && (bytes[end] & 0xc0) === 0x80) end--;
  return bytes.subarray(0, end);
}

const digits = Array.from({ length: 256 }, (_, n) => n.toString(16).padStart(2, '0'));

export function hex(bytes) {
  const out = new Array(bytes.length);
  for (let i = 0; i < bytes.length; i++) out[i] = digits[bytes[i]];
  return out.join('');
}

// unhex is the bytes of hexadecimal digits, between which there may be spaces; null: they are none.
export function unhex(string) {
  const plain = string.replace(/\s+/g, '');
  if (plain.length % 2 !== 0 || /[^0-9a-fA-F]/.test(plain)) return null;
  const out = new Uint8Array(plain.length / 2);
  for (let i = 0; i < out.length; i++) out[i] = parseInt(plain.slice(2 * i, 2 * i + 2), 16);
  return out;
}

// dump shows bytes in lines: offset, hexadecimal, printable ASCII.
export function dump(bytes, width = 16) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += width) {
    const row = bytes.subarray(at, at + width);
    const pairs = Array.from(row, (b) => digits[b]).join(' ').padEnd(3 * width - 1);
    const letters = Array.from(row, (b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : '·')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${pairs}  ${letters}`);
  }
  return lines.join('\n');
}

// Characters that show nothing, or change the direction of the text around them.
const unseen = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/;

// label is a short name of bytes in one line: text, or hexadecimal if it is not plain text.
export function label(bytes, size = 120) {
  const part = start(bytes, size);
  const plain = text(part);
  const more = part.length < bytes.length ? '…' : '';
  if (plain !== null && !unseen.test(plain)) return { text: plain + more, hex: false };
  return { text: hex(bytes.subarray(0, size / 2)) + (bytes.length > size / 2 ? '…' : ''), hex: true };
}

// preview is one line of a value.
export function preview(bytes, size = 160) {
  const part = start(bytes, size);
  const plain = text(part);
  if (plain === null || /[\u0000-\u0008\u000e-\u001f]/.test(plain)) return hex(bytes.subarray(0, 32)) + (bytes.length > 32 ? '…' : '');
  return plain.replace(/\s+/g, ' ') + (part.length < bytes.length ? '…' : '');
}

export function same(a, b) {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

// A key as a part of the page's address: the bytes, percent-encoded.
export function toAddress(bytes) {
  let out = '';
  for (const b of bytes) out += /[A-Za-z0-9._~-]/.test(String.fromCharCode(b)) ? String.fromCharCode(b) : '%' + digits[b];
  return out;
}

export function fromAddress(part) {
  const out = [];
  for (let i = 0; i < part.length; i++) {
    if (part[i] === '%' && /^[0-9a-fA-F]{2}$/.test(part.slice(i + 1, i + 3))) {
      out.push(parseInt(part.slice(i + 1, i + 3), 16));
      i += 2;
    } else out.push(...utf8(part[i]));
  }
  return Uint8Array.from(out);
}

// literal is a pattern of SCAN that matches exactly these bytes.
export function literal(bytes) {
  const out = [];
  for (const b of bytes) {
    if (b === 0x2a || b === 0x3f || b === 0x5b) out.push(0x5b, b, 0x5d);
    else out.push(b);
  }
  return Uint8Array.from(out);
}

const sizes = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

export function size(n) {
  let unit = 0;
  while (n >= 1024 && unit < sizes.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${sizes[unit]}`;
}

export function count(n) {
  if (n >= 1e9) return (n / 1e9).toFixed(1) + ' G';
  if (n >= 1e6) return (n / 1e6).toFixed(1) + ' M';
  if (n >= 1e4) return (n / 1e3).toFixed(1) + ' k';
  return n >= 100 || Number.isInteger(n) ? Math.round(n).toLocaleString('en') : n.toFixed(1);
}

export function seconds(s) {
  if (s >= 86400) return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  if (s >= 3600) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  if (s >= 60) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s >= 1) return `${s >= 10 ? Math.floor(s) : s.toFixed(1)} s`;
  if (s >= 1e-3) return `${(s * 1e3).toFixed(s >= 1e-2 ? 0 : 1)} ms`;
  return `${Math.round(s * 1e6)} µs`;
}

// versionTime is the wall clock of a version, in ms since 1970.
export const versionTime = (version) => Number(version.split(':')[0]);

// newer says whether a version is later than another one of the same server.
export function newer(a, b) {
  const [wall, counter] = a.split(':').map(Number);
  const [otherWall, otherCounter] = b.split(':').map(Number);
  return wall !== otherWall ? wall > otherWall : counter > otherCounter;
}

export function clock(ms) {
  const t = new Date(ms);
  const two = (n, width = 2) => String(n).padStart(width, '0');
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}.${two(t.getMilliseconds(), 3)}`;
}

// diff compares lines: an array of [' ', '-' or '+', line]. It compares at most so many lines;
// null: there are more.
export function diff(before, after, most = 400) {
  const a = before.split('\n');
  const b = after.split('\n');
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const x = a.slice(head, a.length - tail);
  const y = b.slice(head, b.length - tail);
  if (x.length > most || y.length > most) return null;
  const table = Array.from({ length: x.length + 1 }, () => new Uint16Array(y.length + 1));
  for (let i = x.length - 1; i >= 0; i--)
    for (let j = y.length - 1; j >= 0; j--) table[i][j] = x[i] === y[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const out = a.slice(Math.max(0, head - 2), head).map((line) => [' ', line]);
  let i = 0;
  let j = 0;
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) {
      out.push([' ', x[i++]]);
      j++;
    } else if (i < x.length && (j === y.length || table[i + 1][j] >= table[i][j + 1])) out.push(['-', x[i++]]);
    else out.push(['+', y[j++]]);
  }
  return out.concat(a.slice(a.length - tail, a.length - tail + 2).map((line) => [' ', line]));
}
