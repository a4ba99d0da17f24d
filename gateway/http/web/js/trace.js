// The life of one message, step by step.

import { get, part } from "./api.js";
import { h, replace } from "./dom.js";
import { exactly, span, usd } from "./format.js";
import { go, href } from "./router.js";
import { S } from "./strings.js";
import { badge, card, empty, failed, field, head, loading } from "./ui.js";

export const traceView = {
  open(root, route) {
    const id = h("input", { type: "text", autocomplete: "off", value: route.parts[0] ?? "" });
    const place = h("div.stack");
    const form = h("form.inline-form", { on: { submit: (event) => {
      event.preventDefault();
      if (id.value.trim()) go("trace", [id.value.trim()], {}, { replace: true });
    } } }, field(S.trace.id, id), h("button.primary", { type: "submit" }, S.trace.go));
    replace(root, h("div.view.narrow", {}, head(S.nav.trace, S.trace.about), form, place));

    async function draw(to) {
      const wanted = to.parts[0];
      if (!wanted) return void replace(place, empty("trace", S.trace.begin));
      replace(place, loading());
      try {
        replace(place, body(await get(`/v1/trace/${part(wanted)}`, { key: to.query.get("key") })));
      } catch (error) {
        // Without a hint it is the route itself that is not there.
        replace(place, error.status === 404 && /^there is nothing at/.test(error.message) ? empty("info", S.unavailable.title, S.unavailable.text(S.trace.what)) : failed(error, () => draw(to)));
      }
    }

    draw(route);
    return { update(to) {
      id.value = to.parts[0] ?? "";
      draw(to);
      return true;
    } };
  },
};

const STATES = { answered: "good", open: "live", parked: "bad", waiting: "live", running: "live", ended: "" };
const TOLD = ["at", "step", "words", "source"];

function body(found) {
  let before = null;
  return [
    card(null, h("div.row-head", {}, h("code", {}, found.id), badge(found.state, STATES[found.state] ?? "")), h("p.words", {}, found.words), found.key && h("p.hint", {}, S.trace.chat, " ", h("a", { href: href("chats", [found.key]), dir: "auto" }, found.key))),
    card(S.trace.steps, h("ol.steps", {}, found.steps.map((step) => {
      const at = step.at ? new Date(step.at).getTime() : null;
      const gap = at !== null && before !== null ? (at - before) / 1000 : null;
      before = at ?? before;
      return h("li.step", { class: /fail|park|error/.test(step.step) ? "bad" : null }, h("div", {}, h("div.row-head", {}, h("strong", {}, step.step), h("time.faint", { datetime: step.at }, step.at ? exactly(step.at) : S.trace.unknownTime), gap !== null && h("span.faint", {}, `+${gap < 10 ? gap.toFixed(3).replace(/0+$/, "").replace(/\.$/, "") + " s" : span(gap)}`)),
        h("p.words", {}, step.words), h("p.hint", {}, [step.source, ...Object.entries(step).filter(([name]) => !TOLD.includes(name)).map(([name, value]) => `${name} ${name === "cost_usd" ? usd(value) : typeof value === "object" ? JSON.stringify(value) : value}`)].filter(Boolean).join(" · "))));
    }))),
    found.unknown?.length > 0 && card(S.trace.unknown, h("ul", {}, found.unknown.map((one) => h("li", {}, one)))),
  ];
}

