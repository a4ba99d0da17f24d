// Starts the page: the rail, the views by address, the login, the keys that work everywhere.

import { get, onLogin, perhaps, post } from "./api.js";
import { approvalsView } from "./approvals.js";
import { announce, byId, forgetAll, h, kept, replace } from "./dom.js";
import { icon } from "./icons.js";
import { chatsView } from "./chats_view.js";
import { newChat } from "./chats.js";
import { configView } from "./config.js";
import { healthView } from "./health.js";
import { memoryView } from "./memory.js";
import { unsentMessages } from "./outbox.js";
import { overview } from "./overview.js";
import { parkedView } from "./parked.js";
import { peopleView } from "./people.js";
import { href, parse } from "./router.js";
import { schedulesView } from "./schedules.js";
import { searchView } from "./search.js";
import { S } from "./strings.js";
import { traceView } from "./trace.js";
import { button, dialog, field, sure, told } from "./ui.js";
import { usageView } from "./usage.js";

const VIEWS = {
  chats: chatsView, search: searchView, approvals: approvalsView, parked: parkedView, schedules: schedulesView, memory: memoryView,
  people: peopleView, usage: usageView, health: healthView, config: configView, trace: traceView,
};
const THEMES = ["auto", "light", "dark"];

let current = null; // { name, view }
const counts = {};

// -- the rail ----------------------------------------------------------------------------------------

function rail() {
  const links = Object.keys(VIEWS).map((name) => {
    counts[name] = h("span.rail-count", { hidden: true });
    return h("li", {}, h("a", { href: href(name), data: { view: name } }, icon(name), h("span.rail-label", {}, S.nav[name]), counts[name]));
  });
  const theme = button("", () => setTheme(THEMES[(THEMES.indexOf(kept.get("theme", "auto")) + 1) % THEMES.length]), { kind: "quiet rail-button theme" });
  const keys = button("", showKeys, { kind: "quiet rail-button keys" });
  replace(keys, icon("info"), h("span.rail-label", {}, S.keys.title));
  const menu = h("button.quiet.only-icon.menu", { type: "button", "aria-expanded": "false", "aria-controls": "rail-list", "aria-label": S.nav.menu, on: { click: () => setMenu() } }, icon("menu"), counts.all = h("span.rail-count", { hidden: true }));
  const box = byId("rail");
  box.setAttribute("aria-label", S.nav.label);
  replace(box, menu, h("a.brand", { href: href("chats") }, h("img", { src: "/page/icon.svg", alt: "", width: "26", height: "26" }), h("span.rail-label", {}, S.name)),
    h("div.rail-list", { id: "rail-list" }, h("ul.plain", {}, links), h("div.rail-foot", {}, theme, keys)));
  setTheme(kept.get("theme", "auto"));
}

function setMenu(open = !byId("rail").classList.contains("open")) {
  byId("rail").classList.toggle("open", open);
  byId("rail").querySelector(".menu").setAttribute("aria-expanded", String(open));
}

function setTheme(name) {
  kept.set("theme", name === "auto" ? null : name);
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const spot = document.querySelector(".theme");
  replace(spot, icon(name === "auto" ? "auto" : name === "light" ? "sun" : "moon"), h("span.rail-label", {}, S.themes[name]));
  spot.setAttribute("aria-label", S.themes.label(S.themes[name]));
  spot.title = S.themes.label(S.themes[name]);
}

function showCounts() {
  const asks = overview.approvals.length, parked = overview.parked ?? 0;
  for (const [name, count] of [["approvals", asks], ["parked", parked], ["all", asks + parked]]) {
    counts[name].hidden = count === 0;
    replace(counts[name], count > 99 ? "99+" : String(count), h("span.sr", {}, ` ${S.nav.waiting}`));
  }
  document.title = [asks ? `(${asks})` : "", current?.view.title?.() || (current ? S.nav[current.name] ?? S.nav.chats : ""), S.name].filter(Boolean).join(" · ");
}

// -- views -------------------------------------------------------------------------------------------

function show() {
  const route = parse();
  const name = route.name in VIEWS ? route.name : "chats";
  setMenu(false);
  for (const link of byId("rail").querySelectorAll("[data-view]")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (current?.name === name && current.view.update?.(route)) return void showCounts();
  current?.view.close?.();
  const root = byId("main");
  root.className = `at-${name}`;
  replace(root);
  const first = current === null;
  current = { name, view: VIEWS[name].open(root, route) ?? {} };
  showCounts();
  if (!first) {
    // Who moves by keyboard or ear begins at the new view.
    const title = root.querySelector("h1");
    if (title && !root.contains(document.activeElement)) title.focus({ preventScroll: true });
    announce(S.nav[name] ?? "");
  }
}

// -- login -------------------------------------------------------------------------------------------

let within = false; // somebody was let in: what stands here is theirs

function login() {
  // What the last one saw is not for whoever comes now.
  document.body.classList.toggle("signed-out", within);
  return new Promise((done) => {
    const token = h("input", { type: "password", autocomplete: "current-password", required: true });
    const wrong = h("p.error", { role: "alert" });
    const form = h("form.stack", { on: { submit: send } }, h("p", {}, within ? S.login.ended : S.login.text), field(S.login.token, token), wrong,
      h("div.actions", {}, h("button.primary", { type: "submit" }, S.login.go)));
    const made = dialog(S.login.title, form, { closable: false });
    token.focus();
    async function send(event) {
      event.preventDefault();
      wrong.textContent = "";
      try {
        await post("/v1/login", { token: token.value });
      } catch (error) {
        wrong.textContent = error.status === 401 ? S.login.wrong : [error.message, error.hint].filter(Boolean).join(" – ");
        token.select();
        return;
      }
      made.close();
      document.body.classList.remove("signed-out");
      done();
      showRight();
    }
  });
}

// A token that may not do everything is named, so that nobody wonders at a refusal.
async function showRight() {
  const token = await perhaps(get("/v1/token"));
  within = true;
  const foot = document.querySelector(".rail-foot");
  for (const one of foot.querySelectorAll(".right, .sign-out")) one.remove();
  if (token && token.right !== "admin") foot.prepend(h("p.right", { title: S.login.named(token.name) }, S.login.rights[token.right] ?? token.right));
  if (!token?.name) return;
  const out = button("", signOut, { kind: "quiet rail-button sign-out", title: S.login.outTitle(token.name) });
  foot.append(replace(out, icon("leave"), h("span.rail-label", {}, S.login.out)));
}

// Nothing that was written here stays in the browser for whoever comes next.
async function signOut() {
  const unsent = unsentMessages();
  if (unsent && !await sure({ title: S.login.out, text: S.login.unsent(unsent), action: S.login.out })) return;
  await post("/v1/logout");
  forgetAll();
  location.hash = "";
  location.reload();
}

// -- keys --------------------------------------------------------------------------------------------

const GO = { c: "chats", s: "search", a: "approvals", p: "parked", j: "schedules", m: "memory", e: "people", u: "usage", h: "health", o: "config", t: "trace" };
let gone = 0;

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (performance.now() - gone < 1500 && event.key in GO) {
    gone = 0;
    location.hash = href(GO[event.key]);
    return void event.preventDefault();
  }
  gone = event.key === "g" ? performance.now() : 0;
  const act = { "/": () => current.view.search?.() ?? (location.hash = href("search")), n: newChat, "?": showKeys, r: () => current.view.focusSend?.(), Escape: () => (byId("rail").classList.contains("open") ? setMenu(false) : current.view.stop?.()) }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function showKeys() {
  dialog(S.keys.title, h("dl.facts.key-list", {}, S.keys.list.map(([keys, what]) => [h("dt", {}, keys.split(" ").map((one) => h("kbd", {}, one))), h("dd", {}, what)])));
}

// ----------------------------------------------------------------------------------------------------

replace(byId("skip"), S.nav.skip);
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
onLogin(login);
rail();
addEventListener("hashchange", show);
addEventListener("keydown", pressed);
addEventListener("unhandledrejection", (event) => told(event.reason));
overview.addEventListener("change", showCounts);
show();
overview.start();
showRight().catch(told);
