// Messages that could not be answered or sent: why, and what can be done with each.

import { del, get, getAll, part, post } from "./api.js";
import { h, pause, replace } from "./dom.js";
import { ago, exactly, pretty } from "./format.js";
import { codeBlock } from "./markdown.js";
import { overview } from "./overview.js";
import { href } from "./router.js";
import { S } from "./strings.js";
import { badge, button, dialog, empty, head, pages, shown, sure, toast } from "./ui.js";

export const parkedView = {
  open(root) {
    const place = h("div.stack");
    const load = async (cursor) => {
      const found = await get("/v1/parked", { cursor });
      overview.parked = found.count;
      overview.dispatchEvent(new Event("change"));
      return found;
    };
    const again = () => pages(place, load, (found) => found.parked.map((row) => card(row, again)), () => empty("parked", S.parked.none, S.parked.noneText));
    const all = button(S.parked.retryAll, async () => {
      const rows = await getAll("/v1/parked", "parked");
      if (!rows.length || !await sure({ title: S.parked.retryAll, text: S.parked.retryAllText(rows.length), action: S.parked.retryAll, danger: false })) return;
      let back = 0, not = 0;
      for (const row of rows) {
        try {
          await post(address(row, "/retry"), {}, { key: row.key });
          back++;
        } catch (error) {
          // What somebody else put back or dropped meanwhile needs nothing more.
          if (error.status !== 404) not++;
        }
      }
      toast(S.parked.retriedAll(back, not), not ? "error" : "done");
      await again();
    }, { symbol: "retry" });
    replace(root, h("div.view.narrow", {}, head(S.nav.parked, S.parked.about, all), place));
    again();
  },
};

const address = (row, rest = "") => `/v1/parked/${part(row.id)}${rest}`;

function card(row, again) {
  const [cause, cure] = splitReason(row.reason);
  return h("section.row-card", { "aria-label": row.id },
    h("div.row-head", {}, h("span.words", {}, cause), badge(row.box === "inbound" ? S.parked.inbound : S.parked.outbound, row.box === "inbound" ? "warn" : "bad"),
      h("time.faint", { datetime: row.parked_at, title: exactly(row.parked_at) }, ago(row.parked_at))),
    cure && h("p", {}, h("strong", {}, S.parked.cure), " ", cure),
    h("p.hint", {}, row.key ? h("a", { href: href("chats", [row.key]), dir: "auto" }, row.key) : S.parked.unreadable, " · ", h("code", {}, row.id), row.attempts ? ` · ${S.parked.attempts(row.attempts)}` : ""),
    h("div.actions", {},
      button(S.parked.retry, async () => {
        await post(address(row, "/retry"), {}, { key: row.key });
        toast(S.parked.retried);
        await again();
      }, { kind: "primary small", symbol: "retry" }),
      button(S.parked.show, () => look(row), { kind: "small" }),
      row.key && h("a.button.small", { href: href("trace", [row.id], { key: row.key }) }, S.entry.trace),
      button(S.parked.drop, async () => {
        if (!await sure({ title: S.parked.drop, text: S.parked.dropText, action: S.parked.drop })) return;
        await del(address(row), { key: row.key });
        toast(S.parked.dropped);
        await again();
      }, { kind: "danger small", symbol: "trash" })));
}

// `class: cause; cure`, as the reason is written.
function splitReason(reason) {
  const at = reason.lastIndexOf("; ");
  return at < 0 ? [reason, ""] : [reason.slice(0, at), reason.slice(at + 2)];
}

// Message id → its parked row, or null.
const reasons = new Map();
const LOOKS_AFTER_MS = [0, 1000, 4000];

// Under a notice: why its message was set aside and what helps, as the list of parked messages says.
export function whyParked(id, key) {
  const place = h("div.why");
  if (!reasons.has(id)) reasons.set(id, reasonOf(id, key));
  reasons.get(id).then((row) => {
    if (!row) return;
    const [cause, cure] = splitReason(row.reason);
    replace(place, h("p", {}, h("strong", {}, S.parked.why), " ", cause), cure && h("p", {}, h("strong", {}, S.parked.cure), " ", cure), h("p", {}, h("a", { href: href("parked") }, S.parked.see)));
  });
  return place;
}

// The notice comes a moment before its message is set aside. Who may not see what is parked is not told.
async function reasonOf(id, key) {
  for (const wait of LOOKS_AFTER_MS) {
    await pause(wait);
    try {
      return await get(address({ id }), { key });
    } catch (error) {
      if (error.status !== 404) return null;
    }
  }
  return null;
}

function look(row) {
  const place = h("div.stack");
  dialog(S.parked.letter, place, { wide: true });
  shown(place, () => get(address(row), { key: row.key }), (found) => codeBlock(found.body !== undefined ? pretty(found.body) : found.body_base64, found.body !== undefined ? "json" : "base64"));
}
