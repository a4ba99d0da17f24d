// One conversation: its history in a window, the answer as it is written, approvals, and the send box.

import { getAll, part, post } from "./api.js";
import { keepApprovals } from "./approvals.js";
import { titleOf } from "./chats.js";
import { Composer } from "./composer.js";
import { details } from "./details.js";
import { announce, h, replace } from "./dom.js";
import { takesFiles } from "./enclosed.js";
import { rowElement } from "./entries.js";
import { span, splitKey } from "./format.js";
import { aboutOf, asideRow, History } from "./history.js";
import { icon } from "./icons.js";
import { Outbox } from "./outbox.js";
import { overview } from "./overview.js";
import { go, href } from "./router.js";
import { follow } from "./stream.js";
import { S } from "./strings.js";
import { badge, button, empty, failed, loading, told } from "./ui.js";
import { Windowed } from "./virtual.js";

// Notices after which the answer still comes.
const WAITING = /#notice\.(busy|files|idle|model_away|storage|approval(\.|$))/;
const APPROVAL = /#notice\.approval(\.|$)/;
const OLDER_WITHIN_PX = 1500;
const DRAW_MS = 40;
const LONG_DRAFT = 20000;
const ASK_EVERY_MS = 10000;

export class Conversation {
  // `until`: the ULID of a session that has ended and is looked at; `at`: the seq to show.
  constructor(key, { until = null, at = 0 } = {}) {
    this.key = key;
    this.until = until;
    this.live = new Map(); // message id → { text, tool } while its answer is being written
    this.gone = new Set(); // ids of messages whose turns ended with the conversation that was deleted here
    this.history = new History(key, until);
    this.outbox = new Outbox(key, { onChange: () => this.draw(), onEnd: (message, found) => this.ended(message, found) });
    this.scroller = h("div.talk", { tabindex: "0", role: "region", "aria-label": S.talk.label });
    this.state = h("div.talk-state");
    this.approvals = h("div.approvals", { role: "group", "aria-label": S.nav.approvals });
    this.down = button(S.talk.down, () => this.list.toEnd(), { symbol: "down", only: true, kind: "jump" });
    this.down.hidden = true;
    this.header = h("header.talk-head");
    this.connection = h("p.connection", { role: "status", hidden: true }, S.talk.away);
    this.element = h("section.conversation", { "aria-label": S.talk.title, data: { drop: S.files.drop } });
    this.composer = until ? null : new Composer(key, { onSend: (text, files) => this.send(text, files), onStop: () => post("/v1/stop", { key }) });
    if (this.composer) takesFiles(this.element, this.composer.input, (files) => this.composer.enclosed.add(files));
    this.list = new Windowed({
      scroller: this.scroller, render: (row) => rowElement(row, this), keyOf: (row) => row.key, estimate: 96, role: "feed", label: S.talk.label,
    });
    this.list.onScroll = () => this.scrolled();
    this.element.append(this.header, this.state, this.scroller, h("div.talk-foot", {}, this.down, this.connection, this.approvals, this.foot()));
    this.ends = [keepApprovals(this.approvals, { key })];
    this.changed = () => this.overviewChanged();
    overview.addEventListener("change", this.changed);
    this.ticking = setInterval(() => this.drawHead(), 1000);
    this.last = null; // the seq behind which events go on
    this.asked = Date.now();
    this.seen = () => this.looked();
    document.addEventListener("visibilitychange", this.seen);
    this.open(at);
  }

  close() {
    overview.removeEventListener("change", this.changed);
    document.removeEventListener("visibilitychange", this.seen);
    clearInterval(this.ticking);
    this.stream?.close();
    this.outbox.close();
    this.list.close();
    for (const end of this.ends) end();
    this.closed = true;
  }

  foot() {
    if (this.composer) return this.composer.element;
    return h("div.ended-bar", {}, h("p", {}, S.talk.ended), h("div.actions", {},
      button(S.entry.resumeThis, () => this.resume({ id: this.until }), { symbol: "retry" }), h("a.button", { href: href("chats", [this.key]) }, S.talk.present)));
  }

  async open(at) {
    this.drawHead();
    replace(this.state, loading());
    // What is told while the history is read is not missed.
    if (document.visibilityState === "visible") this.listen();
    try {
      await this.history.open({ at });
    } catch (error) {
      replace(this.state, failed(error, () => this.open(at)));
      return;
    }
    if (this.closed) return;
    replace(this.state);
    this.draw({ end: true });
    if (at) this.point(at);
  }

  // Events come while somebody looks: a browser has six connections to a host, and a page in a tab behind needs none.
  listen() {
    if (this.until || this.stream) return;
    this.stream = follow(this.key, { from: this.last, onEvent: (event) => this.see(event), onState: (up) => this.connected(up) });
  }

  looked() {
    if (document.visibilityState === "visible") {
      this.listen();
      if (this.history.isRead) this.catchUp();
    } else if (this.stream && this.stream.last !== null) {
      // Without a place to go on from, what is told meanwhile would be missed.
      this.last = this.stream.last;
      this.stream.close();
      this.stream = null;
      // The text so far comes again.
      this.live.clear();
    }
  }

  // Bring an entry into view and mark it.
  point(at) {
    const segment = this.history.newest;
    const seq = segment?.entries.findLast((entry) => entry.seq <= at)?.seq;
    const element = seq && this.list.reveal(`${segment.session.id}:${seq}`, "center");
    if (element) {
      element.classList.add("pointed");
      element.tabIndex = -1;
      element.focus({ preventScroll: true });
    }
  }

  // -- drawing ---------------------------------------------------------------------------------------

  rows() {
    const known = this.history.ids;
    this.outbox.drop(known);
    const rows = this.history.rows(this.until ? [] : this.outbox.asides.filter((one) => !this.outbox.find(aboutOf(one))));
    if (this.history.segments.length && !this.history.whole) rows.unshift({ key: "more", kind: "more" });
    if (this.until) return rows;
    // What is answered now stands above what waits for that.
    for (const id of this.live.keys()) if (!this.outbox.find(id)) rows.push(this.draft(id));
    const first = this.outbox.messages.filter((message) => this.live.has(message.id));
    for (const message of [...first, ...this.outbox.messages.filter((one) => !first.includes(one))]) {
      rows.push({ key: `p:${message.id}`, kind: "pending", message, state: this.live.has(message.id) ? "running" : message.state });
      rows.push(...this.outbox.asides.filter((one) => aboutOf(one) === message.id).map(asideRow));
      if (this.live.has(message.id)) rows.push(this.draft(message.id));
    }
    return rows;
  }

  draft(id) {
    return { key: `live:${id}`, kind: "draft", live: this.live.get(id), id };
  }

  draw({ end = false, stick = true } = {}) {
    if (this.closed) return;
    const rows = this.rows();
    const before = new Map(this.list.items.map((row) => [row.key, mark(row)]));
    this.list.set(rows, { stick, end });
    for (const row of rows) if (before.has(row.key) && before.get(row.key) !== mark(row)) this.list.refresh(row.key);
    if (!rows.length && !this.state.childElementCount) replace(this.state, empty("chats", S.talk.none, S.talk.noneText));
    else if (rows.length) replace(this.state);
    this.drawHead();
    this.showDown();
  }

  drawHead() {
    const chat = overview.chats.get(this.key) ?? { key: this.key, name: this.history.active?.name ?? null };
    const lane = overview.lanes.get(this.key);
    const running = lane?.id || this.live.size > 0;
    const retried = lane?.id && lane.running_s === null;
    const away = this.was === false || overview.stale;
    const waiting = this.outbox.messages.filter((message) => ["waiting", "sending", "again"].includes(message.state) && !this.live.has(message.id) && message.id !== lane?.id).length;
    // A lane that was looked at before a turn began counts the message of that turn.
    const counted = this.live.size && !this.live.has(lane?.id) ? 0 : lane?.waiting ?? 0;
    const behind = Math.max(counted, running ? waiting : Math.max(waiting - 1, 0));
    this.composer?.show({ running: Boolean(running || lane?.asking || waiting), waiting: behind });
    const seconds = overview.runningFor(this.key);
    this.element.classList.toggle("away", away);
    const state = lane?.asking ? badge(S.lane.asks, "warn") : retried ? badge(S.lane.again, "warn") : running && away ? badge(S.lane.away, "faint")
      : running ? h("span.badge.live", {}, h("span.dot", { "aria-hidden": "true" }), seconds === null ? S.lane.running : S.lane.runningFor(span(seconds))) : null;
    const now = [titleOf(chat), chat.key, lane?.asking, Boolean(running), behind, this.until, this.history.newest?.session.id].join("\u0000");
    if (now !== this.headMark) {
      this.headMark = now;
      replace(this.header, h("a.quiet.only-icon.button.to-list", { href: href("chats"), "aria-label": S.talk.back, title: S.talk.back }, icon("back")),
        h("div.talk-title", {}, h("h1", { dir: "auto" }, titleOf(chat)), h("p.about", { dir: "auto" }, badge(splitKey(this.key).channel || S.chats.kept, "channel"), this.stateSpot = h("span.lane"), h("span.key", {}, this.key))), button(S.talk.details, () => this.details(), { symbol: "info", kind: "quiet details" }));
    }
    replace(this.stateSpot, state);
  }

  showDown() {
    this.down.hidden = this.list.atEnd;
  }

  scrolled() {
    this.showDown();
    if (this.scroller.scrollTop < OLDER_WITHIN_PX && this.history.segments.length && !this.history.whole && !this.history.loading) {
      this.history.older().then((more) => {
        if (!more || this.closed) return;
        this.draw({ stick: false });
        // Who is still at the top wants more.
        this.scrolled();
      }, told);
    }
  }

  // -- what happens ----------------------------------------------------------------------------------

  send(text, files) {
    this.outbox.send(text, files);
    this.draw({ end: true });
    overview.look();
  }

  connected(up) {
    this.connection.hidden = up;
    const back = up && this.was === false;
    this.was = up;
    this.drawHead();
    if (back) this.catchUp();
  }

  overviewChanged() {
    this.drawHead();
    const chat = overview.chats.get(this.key);
    const stamp = chat && `${chat.id} ${chat.last_message_at} ${chat.message_count}`;
    // What changed without an event, as by another program, is read too.
    if (stamp && this.stamp && stamp !== this.stamp && this.history.newest) {
      this.history.stale ||= chat.id !== this.history.newest.session.id;
      this.catchUp();
    }
    this.stamp = stamp ?? this.stamp;
    // What waits here and has no lane has ended without a word, as with its conversation.
    if (!overview.lanes.has(this.key) && this.outbox.awaited.length && Date.now() - this.asked > ASK_EVERY_MS) {
      this.asked = Date.now();
      this.outbox.ask();
    }
    // A turn that ended while nobody listened writes no more.
    if (this.live.size && !overview.lanes.get(this.key)?.id && ![...this.live.keys()].some((id) => this.outbox.find(id))) {
      const ids = [...this.live.keys()];
      setTimeout(() => this.settle(ids), 4000);
    }
  }

  settle(ids) {
    if (overview.lanes.get(this.key)?.id) return;
    for (const id of ids) this.live.delete(id);
    this.catchUp();
  }

  async catchUp() {
    if (this.until) return;
    try {
      await this.history.newer();
    } catch (error) {
      if (error.status !== 0) told(error);
      return;
    }
    this.draw();
  }

  see(event) {
    const id = event.in_reply_to;
    if (this.gone.has(id)) return;
    if (event.kind === "reply" || event.kind === "notice") this.toldOf(event, id);
    else if (event.kind === "queued") this.outbox.mark(id, "waiting");
    else if (event.kind === "started") this.begin(id);
    else if (event.kind === "draft") this.write(id, event.text);
    else if (event.kind === "delta") this.write(id, (this.live.get(id)?.text ?? "") + event.text);
    else if (event.kind === "tool") this.uses(id, event.text);
  }

  begin(id) {
    this.live.set(id, { text: "", tool: "" });
    this.outbox.mark(id, "running");
    this.catchUp();
    overview.look();
  }

  uses(id, tool) {
    // The words before the call are stored now: they come with the history.
    this.live.set(id, { text: "", tool });
    this.catchUp();
  }

  write(id, text) {
    const one = this.live.get(id) ?? { text: "", tool: "" };
    one.text = text;
    if (text) one.tool = "";
    if (!this.live.has(id)) {
      this.live.set(id, one);
      this.draw();
      return;
    }
    this.live.set(id, one);
    this.drawing ??= setTimeout(() => {
      this.drawing = null;
      if (this.live.has(id)) this.list.refresh(`live:${id}`);
    }, text.length > LONG_DRAFT ? DRAW_MS * 6 : DRAW_MS);
  }

  async toldOf(event, id) {
    const ends = event.kind === "reply" || !WAITING.test(event.id);
    if (APPROVAL.test(event.id)) overview.look({ approvals: true });
    try {
      await this.history.newer();
      if (event.kind === "reply" && !this.history.ids.has(id)) {
        // It may stand in a conversation that began meanwhile.
        this.history.stale = true;
        await this.history.newer();
      }
    } catch (error) {
      if (error.status !== 0) told(error);
    }
    if (this.gone.has(id)) return;
    if (ends) this.live.delete(id);
    const stored = this.history.ids.has(id);
    if (event.kind === "notice" ? !APPROVAL.test(event.id) : !stored) this.asideOf(event, id, ends);
    if (ends) this.outbox.drop(new Set([id]));
    if (event.kind === "reply") announce(S.talk.said(event.text.slice(0, 600)));
    else announce(event.text);
    this.draw();
    overview.look();
  }

  // What ended while nobody listened: in the transcript, or else beside it.
  ended(message, { kind, reply }) {
    return this.toldOf({ id: `${message.id}#${kind === "reply" ? "reply" : "notice.ended"}`, kind, text: reply }, message.id);
  }

  // A command and its answer, or a notice: told to this chat, and in no transcript.
  asideOf(event, id, ends) {
    const at = new Date().toISOString();
    const place = { session: this.history.newest?.session.id ?? null, after: this.history.lastSeq, at };
    const asked = this.outbox.find(id);
    if (asked && ends && !this.history.ids.has(id)) this.outbox.aside({ ...place, id: `${id}?`, who: "you", text: asked.text, at: asked.at });
    this.outbox.aside({ ...place, id: event.id, who: event.kind === "reply" ? "reply" : "notice", text: event.text, ends });
    // A command may have ended the session or begun one.
    this.history.stale = true;
  }

  // Put a message that was refused back into the send box.
  takeBack(message) {
    this.outbox.drop(new Set([message.id]));
    this.composer.input.value = [message.text, this.composer.input.value].filter(Boolean).join("\n");
    if (message.files?.length) this.composer.enclosed.putBack(message.files);
    this.composer.typed();
    this.composer.focus();
    this.draw();
  }

  // -- what a person does ----------------------------------------------------------------------------

  async resume(session) {
    await post(`/v1/sessions/${part(session.id)}/resume`);
    await overview.look();
    if (this.until) go("chats", [this.key]);
    else await this.again();
  }

  async again() {
    await this.history.open();
    this.draw({ end: true });
  }

  async details() {
    const sessions = await getAll("/v1/chats/sessions", "sessions", { key: this.key });
    details(this.key, sessions, { shown: this.until, changed: () => (this.until ? null : this.again()), removed: () => this.removed() });
  }

  // The turn has ended with the conversation that was deleted; what waits behind it is answered all the same.
  removed() {
    this.outbox.asides = [];
    for (const id of this.live.keys()) this.gone.add(id);
    this.outbox.drop(this.gone);
    this.outbox.save();
    this.live.clear();
  }
}

// What an element of a row shows: where this is as before, it need not be made anew.
function mark(row) {
  if (row.kind === "pending") return `${row.state} ${row.message.error ?? ""}`;
  if (row.kind === "draft") return `${row.live.tool} ${row.live.text.length}`;
  if (row.kind === "end") return String(row.last);
  return `${row.withdrawn} ${row.superseded} ${row.edit?.seq ?? ""} ${row.results?.map((one) => one?.seq ?? "").join() ?? ""} ${row.first ?? ""}`;
}
