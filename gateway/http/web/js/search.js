// Search over everything that was said: chat after chat, the newest first, shown as it is found.

import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { splitKey, when } from "./format.js";
import { newestChats, titleOf } from "./chats.js";
import { overview } from "./overview.js";
import { go, href } from "./router.js";
import { S } from "./strings.js";
import { badge, empty, failed, field, head } from "./ui.js";

const SHOWN = 60;
const OF_A_LOOK = 30;

export const searchView = {
  open(root, route) {
    const words = h("input", { type: "search", value: route.query.get("q") ?? "", autocomplete: "off", dir: "auto" });
    const where = chatChoice(route.query.get("key") ?? "", S.search.everywhere);
    const state = h("div", { role: "status" });
    const list = h("ul.hits", { "aria-label": S.search.hits });
    let looking = null;

    async function look() {
      looking?.abort();
      const mine = (looking = new AbortController());
      const q = words.value.trim(), key = where.value;
      replace(list);
      if (!q) return void replace(state, empty("search", S.search.begin, S.search.beginText));
      let hits = [], next = 0, whole = true;
      try {
        while (next !== null) {
          const found = key
            ? { ...(await get("/v1/memory/search", { key, q, limit: SHOWN }, mine.signal)), next: null, searched: 1, chats: 1 }
            : await get("/v1/search", { q, limit: OF_A_LOOK, start: next }, mine.signal);
          if (mine.signal.aborted) return;
          whole = whole && found.all;
          hits = [...hits, ...found.hits].sort((one, other) => other.score - one.score).slice(0, SHOWN);
          next = found.next;
          replace(list, hits.map((hit) => row(hit, q)));
          replace(state, next !== null ? [h("p.hint", {}, S.search.looking(found.searched, found.chats)), h("progress", { max: found.chats, value: found.searched, "aria-label": S.search.progress })]
            : hits.length ? h("p.hint", {}, S.search.found(hits.length), whole ? "" : ` ${S.search.notAll}`)
              : empty("search", S.search.none, whole ? S.search.noneText : S.search.notAll));
        }
      } catch (error) {
        if (!mine.signal.aborted) replace(state, failed(error, look));
      }
    }

    const form = h("form.inline-form", { role: "search", on: { submit: (event) => {
      event.preventDefault();
      go("search", [], { q: words.value.trim(), key: where.value }, { replace: true });
    } } }, field(S.search.words, words), field(S.search.where, where), h("button.primary", { type: "submit" }, S.search.go));
    replace(root, h("div.view.narrow", {}, head(S.nav.search, S.search.about), form, state, list));
    const changed = () => fillChoice(where, where.value, S.search.everywhere);
    if (!overview.loaded) overview.addEventListener("change", changed, { once: true });
    if (!words.value) words.focus({ preventScroll: true });
    look();
    return {
      update(to) {
        words.value = to.query.get("q") ?? "";
        fillChoice(where, to.query.get("key") ?? "", S.search.everywhere);
        look();
        return true;
      },
      search: () => (words.focus(), true),
      close: () => looking?.abort(),
    };
  },
};

function row(hit, q) {
  const chat = overview.chats.get(hit.key);
  const present = chat?.active && chat.id === hit.session_id;
  const to = hit.kind === "message" && hit.session_id
    ? href("chats", present ? [hit.key] : [hit.key, hit.session_id], { at: hit.seq })
    : href("memory", [], { key: hit.key, tab: hit.kind === "fact" ? "facts" : hit.kind === "history" ? "history" : "notes" });
  return h("li", {}, h("a.hit", { href: to },
    h("div.row-head", {}, h("span", { dir: "auto" }, chat ? titleOf(chat) : hit.key), badge(splitKey(hit.key).channel, "channel"), hit.kind !== "message" && badge(S.search.kinds[hit.kind] ?? hit.kind),
      h("span.faint", {}, [hit.speaker && S.search.by(hit.speaker), hit.at && when(hit.at)].filter(Boolean).join(", "))),
    h("p.hit-text", { dir: "auto" }, marked(hit.text, q))));
}

// The text with the words that were looked for marked in it.
function marked(text, q) {
  const words = q.toLowerCase().split(/[^\p{L}\p{N}]+/u).filter((word) => word.length > 1).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!words.length) return text;
  return text.split(new RegExp(`(${words.join("|")})`, "giu")).map((piece, at) => (at % 2 ? h("mark", {}, piece) : piece));
}

// A choice of chats, the newest first.
export function chatChoice(chosen, none) {
  return fillChoice(h("select"), chosen, none);
}

export function fillChoice(select, chosen, none) {
  const chats = newestChats().slice(0, 500);
  if (chosen && !chats.some((chat) => chat.key === chosen)) chats.unshift({ key: chosen });
  replace(select, none && h("option", { value: "" }, none), chats.map((chat) => h("option", { value: chat.key, selected: chat.key === chosen }, titleOf(chat) === chat.key ? chat.key : `${titleOf(chat)} (${chat.key})`)));
  select.value = chosen;
  return select;
}

