// Requests to the server's HTTP API (docs/http-api.md), which is for administrators.

import { authorization } from './connection.js';

// Refusal is an answer of the server that is no success; status is that of HTTP.
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const patience = 40000; // ms; the server itself answers within 30 s

// ask makes a request for a path below /api/v1/, and returns the answer. Parameters that are
// undefined or empty are left out.
export async function ask(method, path, parameters = {}, body = undefined) {
  const asked = authorization();
  const headers = {};
  if (asked) headers.Authorization = asked;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== '');
  const query = given.length > 0 ? `?${new URLSearchParams(given)}` : '';
  let response;
  try {
    response = await fetch(`/api/v1/${path}${query}`, {
      method, headers, cache: 'no-store', credentials: asked ? 'omit' : 'same-origin',
      body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.timeout(patience),
    });
  } catch {
    throw new Error('the server does not answer');
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  throw new Refusal(response.status, answer.error || `the server answers with the status ${response.status}`);
}
