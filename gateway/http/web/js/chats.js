// The list of chats: searched by name, key and last word; each row with its lane as it is now.

import { fresh, h, kept, replace } from "./dom.js";
import { brief, span, splitKey } from "./format.js";
import { icon } from "./icons.js";
import { overview } from "./overview.js";
import { go, href } from "./router.js";
import { S } from "./strings.js";
import { badge, button, empty, failed, loading } from "./ui.js";
import { Windowed } from "./virtual.js";

const ROW_PX = 68;

// Which answers were seen in this browser: up to when each chat was open, and since when anything counts as new.
const seen = kept.get("seen", null) ?? { since: new Date().toISOString(), chats: {} };

function note(chat) {
  if (!chat?.last_message_at || !isNew(chat)) return;
  seen.chats[chat.key] = new Date(chat.last_message_at).toISOString();
  kept.set("seen", seen);
}

function isNew(chat) {
  const at = chat.last_message_at && new Date(chat.last_message_at).toISOString();
  return Boolean(at) && at > (seen.chats[chat.key] ?? seen.since);
}

// What a chat is called: its name, else what its platform calls it.
export function titleOf(chat) {
  if (chat?.name) return chat.name;
  const { channel, chat: id } = splitKey(chat?.key ?? "");
  return /^[0-9a-f]{24}$/.test(id) ? S.chats.unnamed(id.slice(0, 4)) : channel ? id : chat?.key ?? "";
}

export const newChat = () => go("chats", [`web:${fresh()}`]);

export class ChatPane {
  constructor() {
    this.chosen = null;
    this.filter = h("input", {
      type: "search", placeholder: S.chats.filter, "aria-label": S.chats.filter, autocomplete: "off",
      on: { input: () => this.filtered(), keydown: (event) => this.fromFilter(event) },
    });
    this.scroller = h("div.chat-scroll", { on: { keydown: (event) => this.move(event) } });
    this.above = new Set(); // chats that came to stand above what is in view
    this.pill = button("", () => this.toTop(), { kind: "small news" });
    this.pill.hidden = true;
    this.heading = titled("h1");
    this.note = h("div.chat-note");
    this.element = h("section.chat-list", { "aria-label": S.chats.title },
      h("div.chat-list-head", {}, this.heading,
        button(S.chats.fresh, newChat, { symbol: "plus", only: true, kind: "quiet" })),
      h("div.filter", {}, icon("search"), this.filter), this.note, h("div.news-spot", { role: "status" }, this.pill), this.scroller);
    this.list = new Windowed({
      scroller: this.scroller, render: (chat) => this.row(chat), keyOf: (chat) => chat.key, rowHeight: ROW_PX,
      role: "list", label: S.chats.title,
    });
    this.list.onScroll = () => this.drawPill();
    this.marks = new Map();
    this.places = new Map();
    this.changed = () => this.draw();
    overview.addEventListener("change", this.changed);
    this.ticking = setInterval(() => this.tick(), 1000);
    this.draw();
  }

  close() {
    overview.removeEventListener("change", this.changed);
    clearInterval(this.ticking);
    this.list.close();
  }

  choose(key) {
    const before = this.chosen;
    this.chosen = key;
    // Where no chat is open, this is the title of the view.
    this.heading.replaceWith(this.heading = titled(key ? "h2" : "h1"));
    for (const one of [before, key]) if (one) this.list.refresh(one);
    if (key) this.list.reveal(key);
  }

  draw() {
    if (overview.error && !overview.loaded) return void replace(this.note, loading());
    if (this.chosen && document.visibilityState === "visible") note(overview.chats.get(this.chosen));
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chats = [...overview.chats.values()]
      .filter((chat) => !words.length || matches(chat, words))
      .sort((one, other) => this.rank(other) - this.rank(one) || order(other, one));
    // A row is made anew only where what it shows is other than before.
    const stale = chats.filter((chat) => this.marks.get(chat.key) !== this.mark(chat));
    this.showAll(chats);
    for (const chat of stale) {
      this.marks.set(chat.key, this.mark(chat));
      this.list.refresh(chat.key);
    }
    replace(this.note, this.words(chats, words));
  }

  // The newest stays in view for whoever looks at it; who looks further down is told what came above. The chat
  // that is open is followed to its new place.
  showAll(chats) {
    const places = new Map(chats.map((chat) => [chat.key, `${this.rank(chat)} ${chat.last_message_at}`]));
    const moved = new Set(this.places.size ? [...places.keys()].filter((key) => places.get(key) !== this.places.get(key)) : []);
    const follow = moved.has(this.chosen) && (!this.list.index.has(this.chosen) || this.list.inView(this.chosen));
    this.list.set(chats, { top: true, moved });
    this.places = places;
    if (follow) this.list.reveal(this.chosen);
    for (const key of moved) this.above.add(key);
    this.drawPill();
  }

  drawPill() {
    for (const key of this.above) if (this.list.atTop || !this.list.index.has(key) || this.list.offsets[this.list.index.get(key)] >= this.scroller.scrollTop) this.above.delete(key);
    this.pill.hidden = this.above.size === 0;
    if (this.above.size) replace(this.pill, icon("up"), h("span", {}, S.chats.above(this.above.size)));
  }

  toTop() {
    this.scroller.scrollTop = 0;
    this.list.paint();
    this.focusRow(0);
    this.drawPill();
  }

  filtered() {
    this.places.clear();
    this.above.clear();
    this.scroller.scrollTop = 0;
    this.draw();
  }

  words(chats, words) {
    if (!overview.loaded) return loading();
    if (overview.error) return failed(overview.error, () => overview.look());
    if (chats.length) return words.length ? h("p.count", { role: "status" }, S.chats.found(chats.length, overview.chats.size)) : null;
    if (words.length) return empty("search", S.chats.nothing, null, h("a", { href: href("search", [], { q: this.filter.value }) }, S.chats.searchAll));
    return empty("chats", S.chats.none, S.chats.noneText, button(S.chats.fresh, newChat, { kind: "primary", symbol: "plus" }));
  }

  rank(chat) {
    const lane = overview.lanes.get(chat.key);
    return lane?.asking ? 1 : 0;
  }

  mark(chat) {
    const lane = overview.lanes.get(chat.key);
    return [chat.name, chat.last_message_at, chat.last_text, chat.active, lane?.id, lane?.running_s === null, lane?.waiting, lane?.asking, chat.key === this.chosen, isNew(chat)].join("\u0000");
  }

  row(chat) {
    const lane = overview.lanes.get(chat.key);
    const { channel } = splitKey(chat.key);
    const current = chat.key === this.chosen;
    const said = chat.last_role === "assistant" ? chat.last_text : chat.last_text && chat.last_role === "user" ? S.chats.they(chat.last_text) : chat.last_text;
    return h("div.chat-row", { role: "listitem", class: current ? "current" : isNew(chat) ? "unread" : null },
      h("a", { href: href("chats", [chat.key]), tabindex: this.tabbable(chat) ? "0" : "-1", "aria-current": current ? "page" : null },
        h("span.chat-line", {}, h("span.chat-title", { dir: "auto" }, titleOf(chat), isNew(chat) && !current && h("span.sr", {}, ` (${S.chats.unread})`)),
          h("span.chat-time", { title: chat.last_message_at }, brief(chat.last_message_at))),
        h("span.chat-line", {}, h("span.chat-last", { dir: "auto" }, said || S.chats.silent),
          h("span.chat-marks", {}, this.state(chat, lane), badge(channel || chat.source, "channel")))));
  }

  tabbable(chat) {
    return this.chosen && overview.chats.has(this.chosen) ? chat.key === this.chosen : chat.key === this.list.items[0]?.key;
  }

  state(chat, lane) {
    if (lane?.asking) return badge(S.lane.asks, "warn");
    if (lane?.id && lane.running_s === null) return [badge(S.lane.again, "warn"), lane.waiting > 0 && badge(S.lane.waiting(lane.waiting))];
    if (lane?.id) {
      const seconds = h("span", { data: { since: chat.key } }, span(overview.runningFor(chat.key)));
      return [h("span.badge.live", {}, h("span.dot", { "aria-hidden": "true" }), h("span.sr", {}, S.lane.running), seconds),
        lane.waiting > 0 && badge(S.lane.waiting(lane.waiting))];
    }
    if (lane?.waiting) return badge(S.lane.waiting(lane.waiting));
    return chat.active ? null : badge(S.chats.ended, "faint");
  }

  tick() {
    for (const one of this.scroller.querySelectorAll("[data-since]")) one.textContent = span(overview.runningFor(one.dataset.since));
  }

  fromFilter(event) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      const first = this.list.items[0];
      if (!first) return;
      if (event.key === "Enter") go("chats", [first.key]);
      else this.focusRow(0);
    }
  }

  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity, PageDown: 8, PageUp: -8 }[event.key];
    const row = event.target.closest("[data-row]");
    if (step === undefined || !row) return;
    event.preventDefault();
    const at = this.list.index.get(row.dataset.row) + step;
    if (at < 0 && step === -1) this.filter.focus();
    else this.focusRow(Math.max(0, Math.min(this.list.items.length - 1, at)));
  }

  focusRow(at) {
    const chat = this.list.items[at];
    this.list.reveal(chat.key)?.querySelector("a").focus({ preventScroll: true });
  }
}

const titled = (tag) => h(`${tag}.pane-title`, { tabindex: "-1" }, S.chats.title);

const order = (one, other) => (one.last_message_at ?? "").localeCompare(other.last_message_at ?? "") || one.key.localeCompare(other.key);

// All chats, whoever spoke last first.
export const newestChats = () => [...overview.chats.values()].sort((one, other) => order(other, one));

function matches(chat, words) {
  const text = `${titleOf(chat)} ${chat.key} ${chat.last_text}`.toLowerCase();
  return words.every((word) => text.includes(word));
}
