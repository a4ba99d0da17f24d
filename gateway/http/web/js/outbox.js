// The messages of one chat that were sent here and are not in its transcript yet, and what was said aside:
// commands with their answers, and notices. Both outlive a reload.

import { ApiError, post } from "./api.js";
import { fresh, kept, keptUnder, pause } from "./dom.js";
import { splitKey } from "./format.js";

const MOST_ASIDES = 60;

export class Outbox {
  // `onChange()`; `onEnd(message, { kind, reply })` of one that ended while nobody looked.
  constructor(key, { onChange, onEnd }) {
    this.key = key;
    this.onChange = onChange;
    this.onEnd = onEnd;
    this.messages = kept.get(`outbox.${key}`, []) ?? [];
    this.asides = kept.get(`asides.${key}`, []) ?? [];
    this.closed = false;
    // What was accepted before a reload may have ended since: handed in again it says how, and is not asked again.
    for (const message of this.messages) if (message.state !== "failed") this.hand(message);
  }

  close() {
    this.closed = true;
  }

  save() {
    kept.set(`outbox.${this.key}`, this.messages.length ? this.messages : null);
    kept.set(`asides.${this.key}`, this.asides.length ? this.asides : null);
  }

  changed() {
    this.save();
    if (!this.closed) this.onChange();
  }

  find(id) {
    return this.messages.find((message) => message.id === id) ?? null;
  }

  send(text, files = []) {
    const { channel } = splitKey(this.key);
    const message = { id: `${channel === "cli" || !channel ? "cli:" : "web:"}${fresh()}`, text, files, at: new Date().toISOString(), state: "sending", accepted: false };
    this.messages.push(message);
    this.changed();
    this.hand(message);
  }

  // Hand a message in until it is accepted or refused; the same id is the same message, so that no try sends it twice.
  async hand(message) {
    for (let wait = 1000; ; wait = Math.min(wait * 2, 15000)) {
      try {
        const found = await post("/v1/messages", { key: this.key, text: message.text, id: message.id, ...(message.files?.length ? { attachments: message.files.map(({ ref, name, mime, kind }) => ({ ref, name, mime, kind })) } : {}) }, { wait: 0 });
        message.id = found.id;
        message.accepted = true;
        if (["sending", "again"].includes(message.state)) message.state = "waiting";
        this.changed();
        if (found.reply !== undefined && !this.closed) this.onEnd(message, found);
        return;
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (error.status !== 0 && error.status !== 429 && error.status < 500) {
          Object.assign(message, { accepted: true, state: "failed", error: [error.message, error.hint].filter(Boolean).join(" – ") });
          return this.changed();
        }
        if (message.state !== "again") {
          message.state = "again";
          this.changed();
        }
        await pause(wait);
      }
    }
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
    if (this.messages.length !== before) this.save();
  }

  // Note what stands beside the transcript: behind which entry of which session it was said.
  aside(one) {
    if (this.asides.some((known) => known.id === one.id)) return;
    this.asides.push(one);
    this.asides = this.asides.slice(-MOST_ASIDES);
    this.save();
  }
}

// How many messages of all chats the gateway has not taken yet.
export function unsentMessages() {
  return keptUnder("outbox.").flatMap((messages) => messages ?? []).filter((message) => !message.accepted).length;
}
