// What was said in a chat, session after session: read from its end, older pages when they are asked for.

import { get, getAll } from "./api.js";
import { sameDay } from "./format.js";

const PAGE = 200;
const LARGE_PAGE = 1000;

export class History {
  // `until`: the session with which it ends, one that has ended; null: the newest.
  constructor(key, until = null) {
    this.key = key;
    this.until = until;
    this.read = { sessions: [], order: null, segments: [], ids: new Set() };
    this.loading = null;
    this.opening = null;
  }

  get sessions() {
    return this.read.sessions;
  }

  // Oldest first: { session, entries, previous }.
  get segments() {
    return this.read.segments;
  }

  // Of messages that stand here.
  get ids() {
    return this.read.ids;
  }

  get isRead() {
    return this.read.order !== null;
  }

  get newest() {
    return this.segments.at(-1) ?? null;
  }

  get active() {
    return this.sessions.find((session) => session.active) ?? null;
  }

  get lastSeq() {
    return lastSeq(this.newest);
  }

  get whole() {
    return isWhole(this.read);
  }

  // Read it anew from its end, down to `at`. Of several at once the one that began last counts, and all end with it.
  open({ at = 0 } = {}) {
    const opening = this.begin(at).then(
      (read) => (this.opening === opening ? void (this.read = read) : this.opening),
      (error) => {
        if (this.opening === opening) throw error;
        return this.opening;
      },
    ).finally(() => {
      if (this.opening === opening) this.opening = null;
    });
    this.opening = opening;
    return opening;
  }

  // What was read stays shown until this is whole.
  async begin(at) {
    const sessions = await getAll("/v1/chats/sessions", "sessions", { key: this.key });
    const first = this.until ? sessions.findIndex((session) => session.id === this.until) : 0;
    const read = { sessions, order: sessions.slice(Math.max(first, 0)), segments: [], ids: new Set() };
    if (!read.order.length) return read;
    await before(read, at ? LARGE_PAGE : PAGE);
    const [newest] = read.segments;
    while (at && newest.previous && newest.entries[0]?.seq > at) await page(read, newest, LARGE_PAGE);
    // A session that has just begun is shown below the end of the one before it.
    if (newest.entries.length < 10) await older(read);
    return read;
  }

  // Read the page before what is here; false where there is nothing older.
  older() {
    this.loading ??= older(this.read).finally(() => (this.loading = null));
    return this.loading;
  }

  // Read what was said since; several wishes at once are one reading, and one more behind it.
  newer() {
    if (this.reading) {
      this.once_more = true;
      return this.reading;
    }
    this.reading = this.readNewer().finally(async () => {
      this.reading = null;
    });
    return this.reading;
  }

  async readNewer() {
    if (this.until) return;
    do {
      this.once_more = false;
      await this.readOnce();
    } while (this.once_more);
  }

  async readOnce() {
    // Who opens it hears of what went wrong.
    await this.opening?.catch(() => {});
    const { read } = this;
    const segment = read.segments.at(-1) ?? null;
    let gone = !segment;
    if (segment) {
      try {
        const found = await get(`/v1/sessions/${segment.session.id}/entries`, { after: lastSeq(segment), limit: LARGE_PAGE });
        // A transcript that became shorter was cleared, and one that ended has a follower.
        gone = found.total < lastSeq(segment);
        const known = new Set(segment.entries.slice(-LARGE_PAGE).map((entry) => entry.seq));
        const news = found.entries.filter((entry) => !known.has(entry.seq));
        segment.entries.push(...news);
        note(read, news);
      } catch (error) {
        if (error.status !== 404) throw error;
        gone = true;
      }
    }
    // It was opened meanwhile: what was found belongs to what is shown no more.
    if (this.read !== read || this.opening) {
      this.once_more = true;
      return;
    }
    // Behind one that has ended another may have begun.
    const asked = gone || this.stale || !segment.session.active;
    this.stale = false;
    if (!asked) return;
    const [first] = (await get("/v1/chats/sessions", { key: this.key, limit: 1 })).sessions;
    if (!gone && first?.id === segment.session.id) Object.assign(segment.session, first);
    else await this.open();
  }

  // What is about a stored message stands behind its question, and before what was asked after it.
  placed(asides) {
    const about = new Map(asides.map((one) => [aboutOf(one), null]));
    for (const { session, entries } of this.segments) {
      for (const { message_id: id, seq } of entries) {
        if (about.has(id)) about.set(id, { session: session.id, first: about.get(id)?.first ?? seq, last: seq });
      }
    }
    const found = asides.map((one) => {
      const own = about.get(aboutOf(one));
      return own ? { ...one, session: own.session, after: Math.min(Math.max(one.session === own.session ? one.after : 0, own.first), own.last) } : one;
    });
    return found.sort((one, other) => one.after - other.after);
  }

  // Everything in order, as rows: boundaries, days, entries. `asides` are of this browser: { at, after, session, … }.
  rows(asides = []) {
    const rows = [];
    let before = null;
    asides = this.placed(asides);
    // What was said aside before anything was stored stands above it.
    if (this.whole || !this.segments.length) rows.push(...asides.filter((one) => one.session === null).map(asideRow));
    for (const [number, segment] of this.segments.entries()) {
      const last = number === this.segments.length - 1;
      // What belongs among lines that were not read yet comes with them.
      const from = segment.previous ? segment.entries[0]?.seq - 1 : 0;
      const mine = asides.filter((one) => one.session === segment.session.id && one.after >= from);
      if (!segment.previous) rows.push({ key: `b:${segment.session.id}`, kind: "begin", session: segment.session, first: this.whole && number === 0 });
      before = entryRows(segment, mine, rows, before);
      if (!segment.session.active) rows.push({ key: `e:${segment.session.id}`, kind: "end", session: segment.session, last });
    }
    return rows;
  }
}

// The id of the message that an aside is about.
export const aboutOf = (aside) => aside.id.replace(/(#(reply|notice\.)[^#]*|\?)$/, "");

const lastSeq = (segment) => segment?.entries.at(-1)?.seq ?? 0;
const isWhole = ({ segments, order }) => segments.length >= (order?.length ?? 0) && !segments[0]?.previous;

// Put the end of the session before what was read above it. Who opens it meanwhile reads into something else.
async function before(read, limit) {
  const session = read.order[read.segments.length];
  const found = await get(`/v1/sessions/${session.id}/entries`, { limit });
  const segment = { session, entries: [], previous: null };
  fill(read, segment, found);
  read.segments.unshift(segment);
}

async function page(read, segment, limit) {
  fill(read, segment, await get(`/v1/sessions/${segment.session.id}/entries`, { before: segment.previous, limit }));
}

function fill(read, segment, found) {
  segment.entries = [...found.entries, ...segment.entries];
  segment.previous = found.previous;
  note(read, found.entries);
}

function note(read, entries) {
  for (const entry of entries) if (entry.message_id && entry.kind === "user") read.ids.add(entry.message_id);
}

async function older(read) {
  if (isWhole(read)) return false;
  const [first] = read.segments;
  if (first.previous) await page(read, first, first.entries.length > 400 ? LARGE_PAGE : PAGE);
  else await before(read, PAGE);
  return true;
}

export const asideRow = (aside) => ({ key: `a:${aside.id}`, kind: "aside", aside });

function entryRows(segment, asides, rows, before) {
  const { session, entries } = segment;
  const results = new Map(), edits = new Map(), called = new Set();
  let kept = 0;
  const undone = [];
  for (const entry of entries) {
    if (entry.kind === "tool") results.set(entry.call_id, entry);
    if (entry.kind === "edit") edits.set(entry.edits, entry);
    if (entry.kind === "undo") undone.push([entry.since, entry.seq]);
    if (entry.kind === "overlay") kept = Math.max(kept, entry.first_kept);
    for (const call of entry.calls ?? []) called.add(call.id);
  }
  let aside = 0;
  const tell = (seq) => {
    for (; aside < asides.length && asides[aside].after < seq; aside++) rows.push(asideRow(asides[aside]));
  };
  for (const entry of entries) {
    tell(entry.seq);
    if (entry.at && !sameDay(before, entry.at) && !["undo", "edit"].includes(entry.kind)) {
      rows.push({ key: `d:${session.id}:${entry.seq}`, kind: "day", at: entry.at });
    }
    before = entry.at ?? before;
    // A result stands in its call, an edit beside what it changed.
    if ((entry.kind === "tool" && called.has(entry.call_id)) || entry.kind === "edit") continue;
    if (kept && entry.seq === kept) rows.push({ key: `k:${session.id}:${entry.seq}`, kind: "kept" });
    const above = rows.at(-1);
    rows.push({
      // The words of one turn follow each other under one name.
      goesOn: entry.kind === "assistant" && above?.kind === "assistant" && above.entry.message_id === entry.message_id,
      key: `${session.id}:${entry.seq}`, kind: entry.kind, entry, session,
      withdrawn: undone.some(([since, until]) => entry.seq >= since && entry.seq < until),
      superseded: entry.seq < kept,
      edit: entry.message_id && entry.kind === "user" ? edits.get(entry.message_id) : undefined,
      results: entry.calls?.map((call) => results.get(call.id)),
    });
  }
  tell(Infinity);
  return before;
}
