// Asks the gateway. Every failure is an ApiError with what is wrong and what would work.

import { pause } from "./dom.js";
import { S } from "./strings.js";

const MOST_TRIES = 3;
const LONGEST_WAIT_S = 15;

export class ApiError extends Error {
  constructor(status, error, hint) {
    super(error);
    this.status = status;
    this.hint = hint || "";
  }
}

let askForToken = null; // shows the login; resolves once the token was accepted

export function onLogin(show) {
  askForToken = show;
}

let waiting = null;

async function login() {
  waiting ??= askForToken().finally(() => (waiting = null));
  return waiting;
}

function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params || {})) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

// Ask once more whenever a token was missing, and what only reads where there were too many requests; other
// failures are the caller's.
export async function ask(method, path, { params, body, signal, headers, raw } = {}) {
  for (let tries = 0; ; tries++) {
    let answer;
    try {
      answer = await fetch(address(path, params), {
        method,
        signal,
        headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
        body: raw ?? (body === undefined ? undefined : JSON.stringify(body)),
      });
    } catch (error) {
      if (signal?.aborted && error.name !== "TimeoutError") throw error;
      throw new ApiError(0, S.errors.away, S.errors.awayHint);
    }
    if (answer.status === 401 && path !== "/v1/login") {
      await login();
      continue;
    }
    if (answer.status === 429 && method === "GET" && tries < MOST_TRIES) {
      await pause(1000 * Math.min(Number(answer.headers.get("Retry-After")) || 1, LONGEST_WAIT_S));
      continue;
    }
    return answer;
  }
}

async function read(answer) {
  const text = await answer.text();
  let found;
  try {
    found = text ? JSON.parse(text) : {};
  } catch {
    found = { error: text.slice(0, 300) };
  }
  if (!answer.ok) throw new ApiError(answer.status, found.error || S.errors.status(answer.status), found.hint);
  return found;
}

export const get = async (path, params, signal) => read(await ask("GET", path, { params, signal }));
export const post = async (path, body = {}, params, signal) => read(await ask("POST", path, { body, params, signal }));
export const patch = async (path, body) => read(await ask("PATCH", path, { body }));
export const put = async (path, body, params) => read(await ask("PUT", path, { body, params }));
export const del = async (path, params) => read(await ask("DELETE", path, { params }));

// Hand in a file; its bytes are the body.
export const upload = async (file, name) => read(await ask("POST", "/v1/media", { params: { name }, raw: file, headers: { "Content-Type": file.type || "application/octet-stream" } }));

// All rows of a listing, page by page.
export async function getAll(path, field, params = {}) {
  const rows = [];
  for (let cursor = null; ;) {
    const found = await get(path, { ...params, limit: 1000, cursor });
    rows.push(...found[field]);
    cursor = found.next ?? null;
    if (cursor === null) return rows;
  }
}

// Of a part that this gateway may not have: null where there is none.
export async function perhaps(work) {
  try {
    return await work;
  } catch (error) {
    if (error instanceof ApiError && [404, 405, 501].includes(error.status)) return null;
    throw error;
  }
}

export const part = encodeURIComponent;
