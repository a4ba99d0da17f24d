// A chat's own page: name and instructions, what it took, its sessions, and how to end or delete them.

import { del, get, part, patch, post } from "./api.js";
import { h, replace } from "./dom.js";
import { compact, cost, number, when } from "./format.js";
import { overview } from "./overview.js";
import { go, href } from "./router.js";
import { S } from "./strings.js";
import { badge, button, dialog, facts, field, shown, sure, toast } from "./ui.js";

export function details(key, sessions, { shown: until = null, changed, removed }) {
  const session = sessions.find((one) => one.id === until) ?? sessions.find((one) => one.active) ?? sessions[0];
  const place = h("div.stack");
  const made = dialog(S.details.title, place, { wide: true });
  if (!session) return void replace(place, h("p", {}, S.details.none));
  shown(place, () => get(`/v1/sessions/${session.id}`), (found) => [editing(found, changed), numbers(found), links(key), ending(key, found, made, { changed, removed }), others(key, sessions, session, made)]);
}

function editing(found, changed) {
  const name = h("input", { type: "text", maxlength: "200", value: found.name ?? "", dir: "auto" });
  const instructions = h("textarea", { rows: "5", maxlength: "100000", dir: "auto" });
  instructions.value = found.instructions ?? "";
  let before = { name: name.value, instructions: instructions.value };
  const save = button(S.save, async () => {
    const now = { name: name.value, instructions: instructions.value };
    // What nobody touched here may have been changed elsewhere meanwhile.
    const changes = Object.keys(now).filter((one) => now[one] !== before[one]).map((one) => [one, now[one].trim() || null]);
    if (changes.length) await patch(`/v1/sessions/${found.id}`, Object.fromEntries(changes));
    before = now;
    toast(S.details.saved);
    await overview.look();
    await changed();
  }, { kind: "primary" });
  return h("form.stack", { on: { submit: (event) => {
    event.preventDefault();
    save.click();
  } } }, field(S.details.name, name), field(S.details.instructions, instructions, S.details.instructionsHint), h("div.actions", {}, save));
}

function numbers(found) {
  return facts([
    [S.details.key, h("code", {}, found.key)], [S.details.session, h("code", {}, found.id)],
    [S.details.state, found.active ? S.details.active : S.details.endedAt(when(found.ended_at))],
    [S.details.created, when(found.created_at)], [S.details.messages, number(found.message_count)],
    [S.details.tokens, S.details.tokensOf(compact(found.metrics.prompt_tokens), compact(found.metrics.completion_tokens))],
    found.agent !== "default" && [S.details.agent, found.agent], [S.details.cost, cost(found.metrics)], found.model && [S.details.model, found.model], found.summary && [S.details.summary, found.summary],
  ]);
}

const links = (key) => h("div.actions", {}, h("a.button", { href: href("memory", [], { key }), on: { click: closeAll } }, S.nav.memory),
  h("a.button", { href: href("search", [], { key }), on: { click: closeAll } }, S.details.search));

function closeAll() {
  for (const one of document.querySelectorAll("dialog[open]")) one.close();
}

function ending(key, found, made, { changed, removed }) {
  const close = found.active && button(S.details.end, async () => {
    if (!await sure({ title: S.details.end, text: S.details.endText, action: S.details.end, danger: false })) return;
    await post(`/v1/sessions/${found.id}/close`);
    made.close();
    toast(S.details.endDone);
    await overview.look();
    await changed();
  });
  const remove = button(S.details.remove, async () => {
    if (!await sure({ title: S.details.remove, text: S.details.removeText(found.message_count), action: S.details.remove })) return;
    await del(`/v1/sessions/${found.id}`);
    if (found.active) removed();
    // Whoever goes on before the list is there would be taken away again.
    try {
      await overview.look();
    } finally {
      made.close();
      toast(S.details.removed);
    }
    if (overview.chats.has(key)) go("chats", [key]);
    else go("chats");
    await changed();
  }, { kind: "danger", symbol: "trash" });
  return h("div.actions", {}, close, remove);
}

function others(key, sessions, current, made) {
  if (sessions.length < 2) return null;
  return h("section", {}, h("h3", {}, S.details.sessions), h("ul.plain.session-list", {}, sessions.map((one) => h("li", {},
    h("a", { href: one.active ? href("chats", [key]) : href("chats", [key, one.id]), "aria-current": one.id === current.id ? "true" : null, on: { click: () => made.close() } },
      h("span", { dir: "auto" }, one.name ?? when(one.created_at)), " ", one.active ? badge(S.details.active, "good") : null,
      h("span.faint", {}, S.details.line(one.message_count, when(one.last_message_at))))))));
}
