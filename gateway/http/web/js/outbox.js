// The messages of one chat that were sent here and are not in its transcript yet, and what was said aside:
// commands with their answers, and notices. Both outlive a reload.

import { ApiError, post } from "./api.js";
import { fresh, kept, keptUnder, pause } from "./dom.js";
import { splitKey } from "./format.js";
import { S } from "./strings.js";

const MOST_ASIDES = 60;
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 15000;
// A try that hangs, as over a line that went away without a word, would hold up all behind it for minutes.
const TRY_MS = 30000;
// For 48 hours the gateway knows an id: after that the same message would be another one, and be answered again.
const KNOWN_MS = 47 * 60 * 60 * 1000;
// A message that is typed later than now was typed by another clock than this one: its age is not known.
const AHEAD_MS = 60 * 60 * 1000;

// key → the outbox of the view that was opened last: it alone hands the messages of the chat in.
const newest = new Map();

export class Outbox {
  // `onChange()`; `onEnd(message, { kind, reply })` of one that ended while nobody looked.
  constructor(key, { onChange, onEnd }) {
    this.key = key;
    this.onChange = onChange;
    this.onEnd = onEnd;
    // Where nothing can be stored the view before knows what waits.
    this.messages = newest.get(key)?.messages.filter((message) => !message.accepted) ?? [];
    this.messages = this.known();
    this.asides = kept.get(`asides.${key}`, []) ?? [];
    this.handing = false;
    this.asked = new Set();
    this.wake();
    newest.set(key, this);
    for (const message of this.messages) if (isOld(message)) this.expire(message);
    // What was accepted before a reload may have ended since: handed in again it says how, and is not asked again.
    this.ask();
    this.handIn();
  }

  get awaited() {
    return this.messages.filter((message) => message.accepted && message.state !== "failed");
  }

  // Ask what became of the messages that were taken, as where their end may have been missed.
  ask() {
    for (const message of this.awaited) {
      if (this.asked.has(message)) continue;
      this.asked.add(message);
      this.hand(message).finally(() => this.asked.delete(message));
    }
  }

  // Nobody looks any more; what waits is handed in all the same.
  close() {
    this.onChange = this.onEnd = () => {};
  }

  // All messages of the chat as they were typed, those of other tabs among them.
  known() {
    const stored = kept.get(`outbox.${this.key}`, []) ?? [];
    const ids = new Set(stored.map((message) => message.id));
    return [...stored.map((message) => this.find(message.id) ?? message), ...this.messages.filter((message) => !ids.has(message.id))];
  }

  save(without = new Set()) {
    const messages = this.known().filter((message) => !without.has(message.id));
    kept.set(`outbox.${this.key}`, messages.length ? messages : null);
    kept.set(`asides.${this.key}`, this.asides.length ? this.asides : null);
  }

  changed() {
    this.save();
    this.onChange();
  }

  find(id) {
    return this.messages.find((message) => message.id === id) ?? null;
  }

  send(text, files = []) {
    const { channel } = splitKey(this.key);
    const message = { id: `${channel === "cli" || !channel ? "cli:" : "web:"}${fresh()}`, text, files, at: new Date().toISOString(), state: "sending", accepted: false };
    // What another tab still has to hand in was typed before.
    this.messages = [...this.known().filter((one) => !one.accepted || this.messages.includes(one)), message];
    this.changed();
    this.wake();
    this.handIn();
  }

  // End the pause between two tries, and have the next ones be short: whoever types wants to know at once.
  wake() {
    this.endPause?.(FIRST_WAIT_MS);
    this.woken = new Promise((done) => (this.endPause = done));
  }

  // Hand in what was not taken yet, each message once those before it were taken or refused for good.
  async handIn() {
    if (this.handing) return;
    this.handing = true;
    try {
      for (let next; newest.get(this.key) === this && (next = this.messages.find((message) => !message.accepted)); ) await this.hand(next);
    } finally {
      this.handing = false;
    }
  }

  // Hand a message in until it is accepted or refused; the same id is the same message, so that no try sends it twice.
  async hand(message) {
    for (let wait = FIRST_WAIT_MS; newest.get(this.key) === this; ) {
      if (isOld(message)) {
        this.expire(message);
        return this.onChange();
      }
      let found, failure;
      try {
        found = await post("/v1/messages", { key: this.key, text: message.text, id: message.id, ...(message.files?.length ? { attachments: message.files.map(({ ref, name, mime, kind }) => ({ ref, name, mime, kind })) } : {}) }, { wait: 0 }, AbortSignal.timeout(TRY_MS));
      } catch (error) {
        failure = error;
      }
      // A view that was opened meanwhile hands it in as well, and shows what became of it.
      if (newest.get(this.key) !== this) return;
      if (found) return this.taken(message, found);
      if (isRefusal(failure)) return this.refused(message, failure);
      this.postponed();
      const longer = Math.min(wait * 2, LONGEST_WAIT_MS);
      wait = await Promise.race([pause(wait).then(() => longer), this.woken]);
    }
  }

  taken(message, found) {
    message.id = found.id;
    message.accepted = true;
    if (["sending", "again"].includes(message.state)) message.state = "waiting";
    this.changed();
    if (found.reply !== undefined) this.onEnd(message, found);
  }

  // What was taken is in the history, or still waits for its turn. Of the rest a person knows whether to send it again.
  expire(message) {
    if (message.state === "failed") return;
    if (message.accepted) return this.drop(new Set([message.id]));
    Object.assign(message, { accepted: true, state: "failed", error: S.pending.old });
    this.save();
  }

  refused(message, { message: why, hint }) {
    Object.assign(message, { accepted: true, state: "failed", error: [why, hint].filter(Boolean).join(" – ") });
    this.changed();
  }

  // Those behind a message that is not taken wait as it does.
  postponed() {
    const waiting = this.messages.filter((message) => !message.accepted && message.state !== "again");
    for (const message of waiting) message.state = "again";
    if (waiting.length) this.changed();
  }

  mark(id, state) {
    const message = this.find(id);
    if (message && message.state !== state) {
      message.state = state;
      this.changed();
    }
  }

  drop(ids) {
    const before = this.messages.length;
    this.messages = this.messages.filter((message) => !ids.has(message.id));
    if (this.messages.length !== before) this.save(ids);
  }

  // Note what stands beside the transcript: behind which entry of which session it was said.
  aside(one) {
    if (this.asides.some((known) => known.id === one.id)) return;
    this.asides.push(one);
    this.asides = this.asides.slice(-MOST_ASIDES);
    this.save();
  }
}

function isOld({ at }) {
  const age = Date.now() - Date.parse(at);
  return !(age > -AHEAD_MS && age < KNOWN_MS);
}

// Whatever else goes wrong may go well later.
function isRefusal(error) {
  return error instanceof ApiError && error.status !== 0 && error.status !== 429 && error.status < 500;
}

// How many messages of all chats the gateway has not taken yet.
export function unsentMessages() {
  return keptUnder("outbox.").flatMap((messages) => messages ?? []).filter((message) => !message.accepted).length;
}
