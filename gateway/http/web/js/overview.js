// What all views share: the chats with their lanes, and what waits for a person. Looked up every few seconds
// while the page is in view; only what changed since the last look comes.

import { get, getAll, perhaps } from "./api.js";

const EVERY_MS = 2500;
// In a tab behind, so that its title still says what waits.
const BEHIND_MS = 30000;
// A look that takes long, as over many thousand chats, is taken less often.
const RESTS = 15;
const APPROVALS_EVERY_MS = 10000;
// So many chats come at first.
const PAGE = 500;

class Overview extends EventTarget {
  constructor() {
    super();
    this.chats = new Map();
    this.lanes = new Map();
    this.approvals = [];
    this.parked = null;
    this.loaded = false;
    this.error = null;
    this.now = null;
    this.timer = 0;
    this.askedApprovals = 0;
    this.running = null;
    this.took = 0;
  }

  start() {
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.look();
    });
    return this.look();
  }

  // Look now; several wishes at once are one look, and one more behind it.
  look({ approvals = false } = {}) {
    if (approvals) this.askedApprovals = 0;
    if (this.running) {
      this.again = true;
      return this.running;
    }
    clearTimeout(this.timer);
    this.running = this.once().finally(() => {
      this.running = null;
      const soon = this.again;
      this.again = false;
      if (soon) this.look();
      else this.timer = setTimeout(() => this.look(), Math.max(document.visibilityState === "visible" ? EVERY_MS : BEHIND_MS, RESTS * this.took));
    });
    return this.running;
  }

  async once() {
    const begun = performance.now();
    try {
      const found = await get("/v1/chats", { since: this.now, limit: this.now === null ? PAGE : null }, AbortSignal.timeout(Math.max(2 * APPROVALS_EVERY_MS, RESTS * this.took)));
      this.took = performance.now() - begun;
      this.take(found);
      // A chat that is gone changes no file that is still there.
      if (found.count !== this.chats.size) {
        // Of many the newest are shown while the others come.
        if (!this.loaded) this.told();
        this.chats = new Map((await getAll("/v1/chats", "chats")).map((chat) => [chat.key, chat]));
      }
      this.error = null;
      await this.lookAside();
    } catch (error) {
      this.error = error;
    }
    this.told();
  }

  told() {
    this.loaded = true;
    this.dispatchEvent(new Event("change"));
  }

  take(found) {
    this.now = found.now;
    for (const chat of found.chats) this.chats.set(chat.key, chat);
    this.lanes = new Map(found.lanes.map((lane) => [lane.key, lane]));
    this.lanesAt = this.knownAt = Date.now();
  }

  async lookAside() {
    const asking = [...this.lanes.values()].some((lane) => lane.asking);
    const known = this.approvals.length > 0;
    if (asking === known && Date.now() - this.askedApprovals < APPROVALS_EVERY_MS) return;
    const stale = Date.now() - this.askedApprovals >= APPROVALS_EVERY_MS;
    this.askedApprovals = Date.now();
    this.approvals = (await get("/v1/approvals", { limit: 1000 })).approvals;
    if (stale || this.parked === null) this.parked = (await perhaps(get("/v1/parked", { limit: 1 })))?.count ?? 0;
  }

  // Whether what is shown is what the gateway said a while ago: nobody knows how it is now.
  get stale() {
    return Boolean(this.error) || Date.now() - this.lanesAt > 2 * EVERY_MS + Math.max(APPROVALS_EVERY_MS, RESTS * this.took);
  }

  // How long a turn of a chat has run, in seconds; null where none does. It stands still while the gateway is away.
  runningFor(key) {
    const lane = this.lanes.get(key);
    if (lane?.running_s === null || lane?.running_s === undefined) return null;
    if (!this.stale) this.knownAt = Date.now();
    return lane.running_s + Math.max(0, this.knownAt - this.lanesAt) / 1000;
  }
}

export const overview = new Overview();
