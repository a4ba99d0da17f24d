// The rows of a conversation as elements.

import { part } from "./api.js";
import { h, replace } from "./dom.js";
import { bytes, clock, dayName, exactly, number, pretty, usd, visible, when } from "./format.js";
import { aboutOf } from "./history.js";
import { icon } from "./icons.js";
import { codeBlock, copyText, markdown } from "./markdown.js";
import { whyParked } from "./parked.js";
import { href } from "./router.js";
import { S } from "./strings.js";
import { badge, button } from "./ui.js";

const SHOWN_CHARS = 20000;
// Which folds a person opened: they stay open when their row is made anew.
const opened = new Set();

export function rowElement(row, view) {
  const make = MAKERS[row.kind] ?? ((one) => entryElement(one, view));
  return make(row, view);
}

// A row that is no message: a day, a boundary, a note. All rows of a feed are articles.
const line = (kind, ...inside) => h("div.line-row", { class: kind, role: "article" }, inside);

const MAKERS = {
  day: (row) => line("day", h("span", {}, dayName(row.at))),
  kept: () => line("kept", h("span", {}, S.entry.keptFrom)),
  begin: (row, view) => beginElement(row, view),
  end: (row, view) => endElement(row, view),
  overlay: (row) => summaryElement(row, S.entry.overlay),
  compact: (row) => summaryElement(row, S.entry.compact),
  undo: () => line("note", h("span", {}, S.entry.undo)),
  aside: (row, view) => asideElement(row.aside, view),
  pending: (row, view) => pendingElement(row.message, row.state, view),
  draft: (row) => draftElement(row),
  more: () => line("note", h("span", {}, S.entry.older)),
};

function beginElement({ session, first }) {
  if (first) return line("boundary", h("span", {}, S.entry.begun(when(session.created_at))));
  return line("boundary", h("span", {}, S.entry.fresh(session.name, when(session.created_at))));
}

function endElement({ session, last }, view) {
  return line("boundary end", h("span", {}, S.entry.ended(session.name)),
    button(last ? S.entry.resume : S.entry.resumeThis, () => view.resume(session), { kind: "small", symbol: "retry" }));
}

function summaryElement({ entry, key }, title) {
  const details = fold(key, h("summary", {}, icon("memory"), h("span", {}, title),
    h("span.faint", {}, entry.tokens_before ? S.entry.before(number(entry.tokens_before)) : "")),
  () => [h("p.hint", {}, S.entry.summaryHint), markdown(entry.text)]);
  return h("div.summary", { role: "article", "aria-label": title }, details);
}

// A fold whose inside is made when it is opened first.
function fold(key, summary, inside, name = "") {
  const made = h("details", { class: name || null }, summary);
  const show = () => {
    if (made.open && made.childElementCount === 1) made.append(h("div.fold", {}, inside()));
    if (made.open) opened.add(key);
    else opened.delete(key);
  };
  made.addEventListener("toggle", show);
  if (opened.has(key)) {
    made.open = true;
    show();
  }
  return made;
}

function entryElement(row, view) {
  const { entry } = row;
  const mine = entry.kind === "user";
  const own = /^(web|cli):/.test(view.key);
  const who = mine ? entry.sender || (own ? S.entry.you : S.entry.person) : entry.kind === "assistant" ? S.entry.model : entry.kind === "tool" ? entry.name || S.entry.tool : S.entry.system;
  const states = [
    row.withdrawn && badge(S.entry.withdrawn, "faint"), entry.stopped && badge(S.entry.stopped, "warn"),
    entry.interrupted && badge(S.entry.interrupted, "faint"), row.edit && badge(row.edit.deleted ? S.entry.deleted : S.entry.edited, "faint"),
    entry.is_error && badge(S.entry.failed, "bad"),
  ].filter(Boolean);
  return h("article.entry", {
    class: [mine ? "mine" : entry.kind, row.withdrawn ? "withdrawn" : "", row.superseded ? "superseded" : "", row.goesOn ? "goes-on" : ""].join(" "),
    "aria-label": S.entry.by(who, when(entry.at)),
  },
  h("div.entry-head", {}, h("span.who", { dir: "auto" }, who), h("time", { datetime: entry.at, title: exactly(entry.at) }, clock(entry.at)), states,
    h("span.entry-actions", {}, actions(row, view))),
  h("div.entry-body", {}, body(row), row.edit && !row.edit.deleted && h("div.edit", {}, h("p.hint", {}, S.entry.editedTo), markdown(row.edit.text)),
    attachments(entry.attachments), calls(row)));
}

function actions({ entry }, view) {
  const { usage } = entry;
  return [
    usage && h("span.entry-spent", {}, S.entry.spent(number(usage.prompt), number(usage.completion), usage.cost_usd ? usd(usage.cost_usd) : "")),
    entry.text && button(S.copy.message, (event) => copyText(entry.text, event.currentTarget.querySelector("span") ?? event.currentTarget), { kind: "quiet small" }),
    entry.message_id && (entry.kind === "user" || entry.final) && h("a.quiet.small", { href: href("trace", [entry.message_id], { key: view.key }) }, S.entry.trace),
  ];
}

function body({ entry, key }) {
  if (entry.kind === "tool") return result(entry, key);
  if (!entry.text) return entry.stopped ? h("p.hint", {}, S.entry.nothingYet) : null;
  const place = h("div");
  const draw = (whole) => replace(place, markdown(whole ? entry.text : entry.text.slice(0, SHOWN_CHARS)),
    entry.text.length > SHOWN_CHARS && !whole && button(S.entry.all(number(entry.text.length)), () => {
      opened.add(`all:${key}`);
      draw(true);
    }, { kind: "small" }),
    entry.cut_from && whole && h("p.hint", {}, S.entry.cut(number(entry.cut_from))));
  draw(entry.text.length <= SHOWN_CHARS || opened.has(`all:${key}`));
  return place;
}

// -- tools and files ---------------------------------------------------------------------------------

function calls({ entry, results, key }) {
  return entry.calls?.map((call, at) => {
    const found = results?.[at];
    const state = found ? (found.is_error ? badge(S.entry.failed, "bad") : null) : badge(S.entry.noResult, "faint");
    return fold(`${key}:${call.id}`, h("summary", {}, icon("tool"), h("span.tool-name", {}, call.name), h("span.tool-brief", {}, briefly(call.arguments)), state),
      () => [h("p.fold-title", {}, S.entry.arguments), codeBlock(pretty(call.arguments), "json"), h("p.fold-title", {}, S.entry.result),
        found ? result(found) : h("p.hint", {}, S.entry.noResultText)], "call");
  });
}

const result = (entry) => [codeBlock(entry.text || S.entry.emptyResult, ""), entry.cut_from && h("p.hint", {}, S.entry.cut(number(entry.cut_from)))];

function briefly(text) {
  let words = text;
  try {
    words = Object.values(JSON.parse(text)).map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(" · ");
  } catch {
    // It is shown as it came.
  }
  // No letter of two halves is cut in two.
  return visible([...words.replace(/\s+/g, " ").slice(0, 240)].slice(0, 120).join(""));
}

const PICTURE = /^image\/(png|jpeg|gif|webp)$/;
export function attachments(files) {
  if (!files?.length) return null;
  return h("ul.files", { "aria-label": S.entry.files }, files.map((file) => {
    const name = file.name || file.kind;
    const at = file.ref.startsWith("media/") ? `/v1/media/${file.ref.slice(6).split("/").map(part).join("/")}` : "";
    const words = [h("span.file-name", { dir: "auto" }, name), h("span.faint", {}, [file.mime, bytes(file.size)].filter(Boolean).join(", "))];
    const picture = at && PICTURE.test(file.mime) && h("img", { src: at, alt: name, loading: "lazy" });
    // A picture that is no longer there leaves its name.
    if (picture) picture.addEventListener("error", () => picture.remove());
    const shown = [picture, h("span.file-line", {}, icon("file"), words)];
    return h("li", {}, at ? h("a.file", { href: at, target: "_blank", rel: "noopener", download: picture ? null : name }, shown) : h("span.file", {}, shown),
      file.caption && h("p.hint", { dir: "auto" }, file.caption));
  }));
}

// -- what is not stored yet, or only here ------------------------------------------------------------

function pendingElement(message, state, view) {
  return h("article.entry.mine.pending", { "aria-label": S.entry.by(S.entry.you, S.pending[state]) },
    h("div.entry-head", {}, h("span.who", {}, S.entry.you), h("time", {}, clock(message.at)), badge(S.pending[state], state === "failed" ? "bad" : "live")),
    h("div.entry-body", {}, markdown(message.text), enclosedNames(message.files), message.error && h("p.error", {}, message.error)),
  state === "failed" && button(S.pending.back, () => view.takeBack(message), { kind: "small" }));
}

// Until a message is stored its files are names: nobody can ask for them yet.
const enclosedNames = (files) => files?.length > 0 && h("ul.files", { "aria-label": S.entry.files }, files.map((file) => h("li", {}, h("span.file-line", {}, icon("file"), h("span.file-name", { dir: "auto" }, file.name), h("span.faint", {}, bytes(file.size))))));

// The answer as far as it is written: its element is changed in place while it grows.
function draftElement(row) {
  const place = h("div.entry-body");
  const made = h("article.entry.assistant.draft", { "aria-label": S.entry.writing, "aria-busy": "true" },
    h("div.entry-head", {}, h("span.who", {}, S.entry.model), h("span.badge.live", {}, h("span.dot", { "aria-hidden": "true" }), row.live.tool ? S.entry.uses(row.live.tool) : S.entry.writing)), place);
  if (row.live.text) place.append(markdown(row.live.text));
  else place.append(h("p.thinking", { "aria-hidden": "true" }, h("span"), h("span"), h("span")));
  return made;
}

function asideElement(aside, view) {
  if (aside.who === "you") return h("article.entry.mine.aside", { "aria-label": S.entry.by(S.entry.you, when(aside.at)) },
    h("div.entry-head", {}, h("span.who", {}, S.entry.you), h("time", {}, clock(aside.at))), h("div.entry-body", {}, markdown(aside.text)));
  const kind = aside.who === "notice" ? S.entry.notice : S.entry.answer;
  return h(`article.entry.aside.${aside.who}`, { "aria-label": S.entry.by(kind, when(aside.at)) },
    h("div.entry-head", {}, h("span.who", {}, kind), h("time", {}, clock(aside.at))), h("div.entry-body", {}, markdown(aside.text), aside.who === "notice" && aside.ends && whyParked(aboutOf(aside), view.key)));
}
