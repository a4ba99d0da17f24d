// The configuration as it is in force, secrets hidden, and what the doctor finds.

import { get, perhaps } from "./api.js";
import { h, replace } from "./dom.js";
import { go } from "./router.js";
import { S } from "./strings.js";
import { badge, button, card, empty, field, head, shown, tabs, unavailable } from "./ui.js";

export const configView = {
  open(root, route) {
    let tab = route.query.get("tab") ?? "settings";
    replace(root, h("div.view", {}, head(S.nav.config, S.config.about), tabs(S.nav.config, [["settings", S.config.settings, settings], ["doctor", S.config.doctor, doctor]],
      tab, (name) => {
        tab = name;
        go("config", [], { tab }, { replace: true });
      })));
    // A tab that a person chose is in the address already; another address is another view.
    return { update: (to) => (to.query.get("tab") ?? "settings") === tab };
  },
};

function settings(panel) {
  shown(panel, () => perhaps(get("/v1/config")), (found) => {
    if (!found) return unavailable(S.config.what);
    const filter = h("input", { type: "search", autocomplete: "off" });
    const place = h("div.columns");
    const draw = () => {
      const words = filter.value.toLowerCase().trim();
      const tables = flat(found).map(([name, rows]) => [name, rows.filter(([key, value]) => `${name}.${key} ${text(value)}`.toLowerCase().includes(words))]).filter(([, rows]) => rows.length);
      replace(place, tables.length ? tables.map(([name, rows]) => card(name ? `[${name}]` : S.config.top, h("dl.facts", {}, rows.map(([key, value]) => [h("dt", {}, h("code", {}, key)), h("dd", {}, shownValue(value))])))) : empty("search", S.config.nothing));
    };
    filter.addEventListener("input", draw);
    draw();
    return [field(S.config.filter, filter), h("p.hint", {}, S.config.readOnly), place];
  });
}

// Tables by their dotted names, each with its own plain values.
function flat(found, prefix = "") {
  const own = [], below = [];
  for (const [name, value] of Object.entries(found)) {
    if (value && typeof value === "object" && !Array.isArray(value)) below.push(...flat(value, prefix ? `${prefix}.${name}` : name));
    else own.push([name, value]);
  }
  return own.length ? [[prefix, own], ...below] : below;
}

const text = (value) => (typeof value === "string" ? value : Array.isArray(value) ? value.map(text).join(", ") : JSON.stringify(value));

function shownValue(value) {
  if (value === "" || value === null || (Array.isArray(value) && !value.length)) return h("span.faint", {}, S.config.unset);
  if (typeof value === "boolean") return badge(value ? S.config.yes : S.config.no, value ? "good" : "faint");
  return h("code", {}, text(value));
}

function doctor(panel) {
  const again = () => shown(panel, () => perhaps(get("/v1/doctor")), (found) => {
    if (!found) return unavailable(S.config.doctorWhat);
    const of = (level) => found.checks.filter((one) => one.level === level);
    const order = [...of("fail"), ...of("warn"), ...of("ok")];
    return [h("div.row-head", {}, h("p", { role: "status" }, S.config.summary(of("fail").length, of("warn").length, of("ok").length), found.complete === false ? ` ${S.config.incomplete}` : ""), h("div.actions", {}, button(S.config.again, again, { symbol: "retry" }))),
      card(null, h("div", {}, order.map((one) => h("div.check", {}, badge(S.config.levels[one.level], { ok: "good", warn: "warn", fail: "bad" }[one.level]), h("strong", {}, one.name), h("p", {}, one.text), one.cure && h("p.hint", {}, S.config.cure(one.cure))))))];
  });
  again();
}
