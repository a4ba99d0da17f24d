// How the gateway is doing: its parts, what waits where, what runs, what the day took.

import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { ago, bytes, compact, cost, number, span, when } from "./format.js";
import { href } from "./router.js";
import { S } from "./strings.js";
import { badge, card, empty, facts, failed, head, loading, tableOf } from "./ui.js";

const EVERY_MS = 4000;

export const healthView = {
  open(root) {
    const place = h("div.stack", {}, loading());
    replace(root, h("div.view", {}, head(S.nav.health, S.health.about), place));
    let timer = 0, closed = false, before = "";
    const look = async () => {
      clearTimeout(timer);
      if (document.visibilityState === "visible") {
        try {
          const [status, all] = await Promise.all([get("/v1/status"), get("/v1/lanes")]);
          const found = { ...status, ...all };
          if (closed) return;
          // What is as it was is not made anew: a reader keeps the place.
          const now = JSON.stringify(found);
          if (now !== before) replace(place, body(found));
          before = now;
        } catch (error) {
          if (!closed) replace(place, failed(error, look));
          before = "";
        }
      }
      if (!closed) timer = setTimeout(look, EVERY_MS);
    };
    look();
    return { close: () => {
      closed = true;
      clearTimeout(timer);
    } };
  },
};

const tile = (value, what) => h("div.tile", {}, h("span.value", {}, value), h("span.what", {}, what));

function body(found) {
  const queues = Object.entries(found.queues ?? {});
  const inbound = queues.filter(([name]) => name.includes("inbound"));
  const waiting = inbound.reduce((sum, [, depth]) => sum + depth.count, 0);
  const parked = queues.find(([name]) => name === "parked")?.[1]?.count;
  const running = found.lanes.filter((lane) => lane.id).length;
  const spent = found.usage_today;
  return [
    h("div.tiles", {}, tile(found.ready ? S.health.ready : S.health.notReady, S.health.state), tile(number(running), S.health.running),
      tile(found.queues ? number(waiting) : "–", S.health.waiting), tile(parked === undefined ? "–" : number(parked), S.health.parked),
      spent && tile(compact(spent.prompt_tokens + spent.completion_tokens), S.health.tokens), spent && tile(cost(spent), S.health.cost)),
    h("div.cards", {}, parts(found.parts), daemon(found)),
    card(S.health.lanes, found.silent.length > 0 && h("p.error", { role: "alert" }, S.health.silent(found.silent.length)), lanes(found.lanes)),
    card(S.health.queues, found.queues ? queuesTable(queues) : h("p", {}, S.health.queueAway), unserved(found.unserved)),
    h("div.cards", {}, found.memory && background(found.memory), found.subagents?.length > 0 && card(S.health.subagents, tableOf(S.health.subagents, Object.keys(found.subagents[0]), found.subagents.map((one) => Object.values(one).map(String))))),
  ];
}

function parts(all) {
  return card(S.health.parts, h("div", {}, Object.entries(all).map(([name, one]) => h("div.check", {}, badge(one.up ? S.health.up : S.health.down, one.up ? "good" : "bad"),
    h("div.row-head", {}, h("strong", {}, name), h("span.faint", {}, one.since ? S.health.since(span((Date.now() - Date.parse(one.since)) / 1000)) : "")), one.error && h("p.error", {}, one.error)))));
}

function daemon(found) {
  return card(S.health.daemon, facts([
    [S.health.version, found.version], [S.health.role, found.role], [S.health.pid, String(found.pid)], [S.health.started, `${when(found.started_at)} (${ago(found.started_at)})`],
    [S.health.model, found.model], [S.health.media, bytes(found.media_bytes)],
    found.in_memory && [S.health.memory, S.health.inMemory(number(found.in_memory.letters), bytes(found.in_memory.bytes), bytes(found.in_memory.max_bytes))],
  ]));
}

function lanes(all) {
  if (!all.length) return empty("check", S.health.noLanes);
  return tableOf(S.health.lanes, [S.health.chat, S.health.state, S.health.waiting], all.map((lane) => [
    h("a", { href: href("chats", [lane.key]), dir: "auto" }, lane.key),
    lane.asking ? badge(`${S.lane.asks}: ${lane.asking}`, "warn") : lane.running_s !== null ? badge(S.lane.runningFor(span(lane.running_s)), "live") : badge(lane.id ? S.lane.again : S.health.idle),
    number(lane.waiting),
  ]));
}

function queuesTable(queues) {
  return tableOf(S.health.queues, [S.health.queue, S.health.letters, S.health.oldest], queues.map(([name, depth]) => [h("code", {}, name), number(depth.count), depth.oldest_at ? ago(depth.oldest_at) : "–"]));
}

const unserved = (rows) => rows?.length > 0 && h("ul", {}, rows.map((row) => h("li", {}, S.health.unserved(row.channel, number(row.count)))));

function background(found) {
  return card(S.health.background, facts([
    [S.health.jobs, S.health.jobsOf(number(found.running), number(found.waiting))], found.facts_waiting !== undefined && [S.health.facts, number(found.facts_waiting)],
    found.next_at && [S.health.next, when(found.next_at)], found.reasons?.length > 0 && [S.health.reasons, found.reasons.join("; ")], found.last_error && [S.health.lastError, found.last_error],
  ]));
}
