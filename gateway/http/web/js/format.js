// Numbers and times as people read them, in the browser's own zone.

import { S } from "./strings.js";

const LOCALE = "en-GB";
const time = new Intl.DateTimeFormat(LOCALE, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(LOCALE, { day: "numeric", month: "short" });
const dayOfYear = new Intl.DateTimeFormat(LOCALE, { day: "numeric", month: "short", year: "numeric" });
const weekday = new Intl.DateTimeFormat(LOCALE, { weekday: "short" });
const longDay = new Intl.DateTimeFormat(LOCALE, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const whole = new Intl.DateTimeFormat(LOCALE, {
  day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});

export const date = (at) => {
  const found = at === null || at === undefined || at === "" ? null : new Date(at);
  return found && !Number.isNaN(found.getTime()) ? found : null;
};
const midnight = (at) => new Date(at.getFullYear(), at.getMonth(), at.getDate()).getTime();
const daysAgo = (at, now = new Date()) => Math.round((midnight(now) - midnight(at)) / 86400000);

export const clock = (at) => (date(at) ? time.format(date(at)) : "");
export const exactly = (at) => (date(at) ? whole.format(date(at)) : "");
export const dayName = (at) => {
  const found = date(at);
  if (!found) return "";
  const ago = daysAgo(found);
  return ago === 0 ? S.time.today : ago === 1 ? S.time.yesterday : longDay.format(found);
};
export const sameDay = (one, other) => Boolean(date(one) && date(other)) && midnight(date(one)) === midnight(date(other));

// As short as a list wants it: 14:02, Mon, 3 Nov, 3 Nov 2025.
export function brief(at) {
  const found = date(at);
  if (!found) return "";
  const ago = daysAgo(found);
  if (ago === 0) return time.format(found);
  if (ago > 0 && ago < 7) return weekday.format(found);
  return found.getFullYear() === new Date().getFullYear() ? day.format(found) : dayOfYear.format(found);
}

export function when(at) {
  const found = date(at);
  if (!found) return S.time.never;
  return `${sameDay(found, new Date()) ? S.time.today : found.getFullYear() === new Date().getFullYear() ? day.format(found) : dayOfYear.format(found)} ${time.format(found)}`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s < 600 && s % 60 ? ` ${s % 60} s` : ""}`;
  const [large, small, of, parts] = s < 86400 ? ["h", "min", 3600, 60] : ["d", "h", 86400, 3600];
  const rest = Math.floor((s % of) / parts);
  return `${Math.floor(s / of)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

export function ago(at) {
  const found = date(at);
  if (!found) return S.time.never;
  const seconds = (Date.now() - found.getTime()) / 1000;
  return seconds >= 0 ? S.time.ago(span(seconds)) : S.time.ahead(span(-seconds));
}

export const number = (value) => (typeof value === "number" ? Math.round(value).toLocaleString(LOCALE) : "–");
export function compact(value) {
  if (typeof value !== "number") return "–";
  return Math.abs(value) < 10000 ? number(value) : new Intl.NumberFormat(LOCALE, { notation: "compact", maximumFractionDigits: 1 }).format(value);
}
export function usd(value) {
  if (typeof value !== "number") return S.unknown;
  const digits = value === 0 || Math.abs(value) >= 1 ? 2 : 4;
  return `$${value.toFixed(digits)}`;
}
// A sum may leave out tokens whose price nobody knows.
export const cost = (sums) => (sums.unpriced_tokens && sums.cost_usd ? "≥ " : "") + usd(sums.cost_usd);
export function bytes(value) {
  if (typeof value !== "number") return "";
  if (value < 1000) return `${value} B`;
  if (value < 999500) return `${Math.round(value / 1000)} kB`;
  return value < 999500000 ? `${(value / 1e6).toFixed(1)} MB` : `${(value / 1e9).toFixed(1)} GB`;
}

// telegram:123 → its channel and the rest.
export function splitKey(key) {
  const at = key.indexOf(":");
  return at < 0 ? { channel: "", chat: key } : { channel: key.slice(0, at), chat: key.slice(at + 1) };
}

// A day of UTC, as `2026-11-23`: 23 Nov.
const dayOfUtc = new Intl.DateTimeFormat(LOCALE, { day: "numeric", month: "short", timeZone: "UTC" });
export const utcDay = (text) => dayOfUtc.format(new Date(`${text}T12:00:00Z`));

// What is invisible or turns the direction of writing, as \uXXXX: in JSON that is the same text.
export function visible(text) {
  return text.replace(/[\p{C}\p{Z}]/gu, (one) => (one === " " || one === "\n" ? one
    : one.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join("")));
}

const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|\[\s*\]|\{\s*\}|[{}[\],:]|[^\s{}[\],:"]+/gs;
const DEEPEST = 50;

// JSON in lines, each value as it is written: read as values, numbers would become what a browser can hold.
export function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return visible(text);
  }
  let made = "", depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, DEEPEST))}`;
  for (const [token] of text.matchAll(TOKEN)) {
    if (token === "{" || token === "[") {
      depth++;
      made += token + line();
    } else if (token === "}" || token === "]") {
      depth--;
      made += line() + token;
    } else if (token === ",") made += token + line();
    else if (token === ":") made += ": ";
    else made += /^[[{]/.test(token) ? token.replace(/\s/g, "") : token;
  }
  return visible(made);
}
