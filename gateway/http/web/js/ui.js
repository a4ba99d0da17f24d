// What every view is made of: buttons, dialogs, toasts, empty states and failures.

import { announce, byId, h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { S } from "./strings.js";

// A button; while its work goes on it cannot be pressed again, and what fails is told.
export function button(label, onClick, { kind = "", symbol = "", title = "", only = false, ...attributes } = {}) {
  const made = h("button", {
    type: "button", class: [kind, only ? "only-icon" : ""].join(" "), title: title || (only ? label : null),
    "aria-label": only ? label : null, ...attributes,
  }, symbol && icon(symbol), only ? null : h("span", {}, label));
  if (onClick) made.addEventListener("click", (event) => working(made, () => onClick(event)));
  return made;
}

export async function working(element, work) {
  if (element.getAttribute("aria-busy") === "true") return;
  element.setAttribute("aria-busy", "true");
  try {
    await work();
  } catch (error) {
    told(error);
  } finally {
    element.removeAttribute("aria-busy");
  }
}

export function told(error) {
  if (error?.name === "AbortError") return;
  if (!("hint" in error)) console.error(error);
  toast([error.message, error.hint].filter(Boolean).join(" – "), "error");
}

export function toast(text, kind = "done") {
  const close = h("button.quiet.only-icon", { type: "button", "aria-label": S.close }, icon("close"));
  const made = h(`div.toast.${kind}`, {}, h("span", {}, text), close);
  const end = () => made.remove();
  close.addEventListener("click", end);
  byId("toasts").append(made);
  announce(text);
  setTimeout(end, kind === "error" ? 12000 : 4000);
}

// -- dialogs -----------------------------------------------------------------------------------------

// Open a dialog with a title and content; `close()` in the result ends it. The focus goes back where it was.
export function dialog(title, content, { wide = false, onClose, closable = true } = {}) {
  const id = `dialog-${Math.random().toString(36).slice(2)}`;
  const close = h("button.quiet.only-icon", { type: "button", "aria-label": S.close }, icon("close"));
  const made = h("dialog", { "aria-labelledby": id, class: wide ? "wide" : null },
    h("div.dialog-head", {}, h("h2", { id }, title), closable && close), h("div.dialog-body", {}, content));
  close.addEventListener("click", () => made.close());
  if (!closable) made.addEventListener("cancel", (event) => event.preventDefault());
  made.addEventListener("click", (event) => {
    // A press beside the dialog is one on its backdrop.
    if (closable && event.target === made) made.close();
  });
  made.addEventListener("close", () => {
    made.remove();
    onClose?.();
  });
  document.body.append(made);
  made.showModal();
  return made;
}

export function sure({ title, text, action, danger = true }) {
  return new Promise((answer) => {
    let yes = false;
    const go = button(action, () => {
      yes = true;
      made.close();
    }, { kind: danger ? "danger" : "primary" });
    const made = dialog(title, [h("p", {}, text),
      h("div.actions", {}, button(S.cancel, () => made.close()), go)], { onClose: () => answer(yes) });
  });
}

// -- parts of views ----------------------------------------------------------------------------------

export function head(title, about, ...actions) {
  return h("header.view-head", {}, h("div", {}, h("h1", { tabindex: "-1" }, title), about && h("p.about", {}, about)),
    actions.length > 0 && h("div.actions", {}, actions));
}

export function empty(symbol, title, text, ...actions) {
  return h("div.empty", {}, icon(symbol), h("p.empty-title", {}, title), text && h("p", {}, text), actions);
}

export function failed(error, again) {
  return h("div.failed", { role: "alert" }, h("p", {}, h("strong", {}, error.message)), error.hint && h("p", {}, error.hint),
    again && button(S.again, again, { symbol: "retry" }));
}

export const unavailable = (what) => empty("info", S.unavailable.title, S.unavailable.text(what));
export const loading = () => h("p.loading", { role: "status" }, S.loading);
export const badge = (text, kind = "") => h(`span.badge${kind ? `.${kind}` : ""}`, {}, text);
export const card = (title, ...children) => h("section.card", {}, title && h("h2", {}, title), children);

// Rows of name and value.
export function facts(rows) {
  return h("dl.facts", {}, rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function tableOf(label, heads, rows) {
  return h("div.table", { tabindex: "0", role: "region", "aria-label": label }, h("table", {}, h("thead", {}, h("tr", {}, heads.map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell)))))));
}

// A listing in pages: `load(cursor)` brings `{ next, … }`, `rows(found)` its rows; a press shows those behind.
export async function pages(place, load, rows, none) {
  await shown(place, () => load(null), (found) => {
    const made = rows(found);
    return made.length ? [made, more(found.next)] : none();
  });
  function more(next) {
    if (!next) return null;
    const again = button(S.more, async () => {
      const found = await load(next);
      const made = rows(found), after = more(found.next);
      again.replaceWith(...[made, after].flat(2).filter(Boolean));
      made[0]?.querySelector?.("a, button")?.focus({ preventScroll: true });
    }, { symbol: "down", kind: "more" });
    return again;
  }
}

let fields = 0;
export function field(label, control, hint = "") {
  const id = `field-${++fields}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h("div.field", {}, h("label", { for: id }, label), control, hint && h("p.hint", { id: `${id}-hint` }, hint));
}

// Tabs over panels that are made when they are first looked at: [[name, label, (panel) => …], …].
export function tabs(label, list, chosen, onChoose) {
  const panel = h("div.tab-panel", { role: "tabpanel", tabindex: "0", id: "tab-panel" });
  const made = list.map(([name, text]) => h("button.tab", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "tab-panel",
    on: { click: () => choose(name) }, data: { name },
  }, text));
  const bar = h("div.tabs", { role: "tablist", "aria-label": label, on: { keydown: move } }, made);
  function choose(name, { quiet = false } = {}) {
    for (const one of made) {
      const now = one.dataset.name === name;
      one.setAttribute("aria-selected", String(now));
      one.tabIndex = now ? 0 : -1;
    }
    panel.setAttribute("aria-labelledby", `tab-${name}`);
    // What another tab still waits for fills its own place, which is gone then.
    const place = h("div.stack");
    replace(panel, place);
    list.find(([one]) => one === name)[2](place);
    if (!quiet) onChoose?.(name);
  }
  function move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = made.indexOf(document.activeElement);
    const next = made[(at + step + made.length) % made.length];
    next.focus();
    choose(next.dataset.name);
  }
  choose(list.some(([one]) => one === chosen) ? chosen : list[0][0], { quiet: true });
  return [bar, panel];
}

// Show what `load` brings in `place`; a failure is told with a way to try again.
export async function shown(place, load, show) {
  replace(place, loading());
  try {
    const found = await load();
    replace(place, show(found));
  } catch (error) {
    if (error?.name === "AbortError") return;
    replace(place, failed(error, () => shown(place, load, show)));
  }
}
