// What models took over time: tokens and cost by day, chat, person and model, and what is left of the budgets.

import { get, perhaps } from "./api.js";
import { bar, columns } from "./charts.js";
import { h, replace } from "./dom.js";
import { compact, cost, number, usd, utcDay } from "./format.js";
import { titleOf } from "./chats.js";
import { overview } from "./overview.js";
import { href } from "./router.js";
import { S } from "./strings.js";
import { badge, button, card, empty, head, shown, tableOf } from "./ui.js";

const SPANS = [7, 14, 30];
const MOST_ROWS = 12;
const FAR = 3;

export const usageView = {
  open(root) {
    const place = h("div.stack");
    let days = 30;
    const choice = h("div.choice", { role: "group", "aria-label": S.usage.span }, SPANS.map((one) => button(S.usage.days(one), () => choose(one), { "aria-pressed": String(one === days), data: { days: one } })));
    function choose(wanted) {
      days = wanted;
      for (const one of choice.children) one.setAttribute("aria-pressed", String(Number(one.dataset.days) === days));
      draw();
    }
    const draw = () => shown(place, async () => {
      const [status, found] = await Promise.all([get("/v1/status"), perhaps(get("/v1/usage", { days }))]);
      return { status, found };
    }, ({ status, found }) => [budgets(status), found ? history(found, status) : card(null, empty("usage", S.unavailable.title, S.unavailable.text(S.usage.what)), today(status))]);
    replace(root, h("div.view", {}, head(S.nav.usage, S.usage.about, choice), place));
    draw();
  },
};

const tile = (value, what) => h("div.tile", {}, h("span.value", {}, value), h("span.what", {}, what));

function today(status) {
  const spent = status.usage_today;
  return spent && h("div.tiles", {}, tile(number(spent.turns), S.usage.turns), tile(compact(spent.prompt_tokens), S.usage.prompt), tile(compact(spent.completion_tokens), S.usage.completion), tile(cost(spent), S.usage.cost));
}

function budgets(status) {
  if (!status.limits?.length) return null;
  return card(S.usage.budgets, h("div.stack", {}, status.limits.map((row) => {
    const tokens = row.limit === "tokens_per_day";
    const show = tokens ? number : usd;
    const text = S.usage.left(show(row.left), show(row.of));
    return h("div.field", {}, h("div.row-head", {}, h("span", {}, S.usage.limits[row.limit] ?? row.limit), row.who && badge(row.who, "channel"), h("span.faint", {}, text)), bar(row.of && row.left !== null ? 1 - row.left / row.of : 0, text));
  })));
}

function history(found, status) {
  const all = found.total;
  if (!all.turns && !all.calls) return card(null, empty("usage", S.usage.none, S.usage.noneText));
  const cap = (name) => status.limits?.find((row) => row.limit === name && row.who === null)?.of ?? null;
  const highest = (of) => Math.max(0, ...found.days.map(of));
  const [tokenCap, tokenLegend] = capOf(cap("tokens_per_day"), highest((day) => day.prompt_tokens + day.completion_tokens), compact);
  const [costCap, costLegend] = capOf(cap("cost_per_day_usd"), highest((day) => day.cost_usd), usd);
  return [
    h("div.tiles", {}, tile(number(all.turns), S.usage.turns), tile(number(all.calls), S.usage.calls), tile(compact(all.prompt_tokens), S.usage.prompt), tile(compact(all.completion_tokens), S.usage.completion), tile(cost(all), S.usage.cost)),
    h("div.cards", {},
      card(null, columns({ title: S.usage.tokensByDay, format: compact, cap: tokenCap, legend: [["", S.usage.prompt], ["two", S.usage.completion], ...tokenLegend],
        rows: found.days.map((day) => ({ label: utcDay(day.day), values: [day.prompt_tokens, day.completion_tokens], told: S.usage.tokensOf(number(day.prompt_tokens), number(day.completion_tokens)) })) })),
      card(null, columns({ title: S.usage.costByDay, format: usd, cap: costCap, legend: costLegend.length ? [["", S.usage.cost], ...costLegend] : [], rows: found.days.map((day) => ({ label: utcDay(day.day), values: [day.cost_usd ?? 0], told: cost(day) })) }))),
    card(null, columns({ title: S.usage.turnsByDay, format: compact, rows: found.days.map((day) => ({ label: utcDay(day.day), values: [day.turns], told: number(day.turns) })) })),
    h("div.cards", {}, ranked(S.usage.byModel, found.models, (row) => row.model ?? S.usage.unnamed), ranked(S.usage.byChat, found.chats, (row) => chatOf(row.key)), found.people.length > 0 && ranked(S.usage.byPerson, found.people, (row) => row.person ?? S.usage.unnamed)),
  ];
}

// A chat by its name, as the list of chats has it.
function chatOf(key) {
  if (!key) return S.usage.unnamed;
  const chat = overview.chats.get(key);
  return h("a", { href: href("chats", [key]), dir: "auto", title: key }, chat ? titleOf(chat) : key);
}

// A cap that is far above what was spent would press the columns flat: then it is told, and not drawn.
function capOf(cap, highest, format) {
  if (cap === null) return [null, []];
  return cap > FAR * highest ? [null, [["above", S.usage.capAbove(format(cap))]]] : [cap, [["capped", S.usage.cap]]];
}

const ranked = (title, rows, name) => card(title, numbersOf(title, [S.usage.who, S.usage.turns, S.usage.tokens, S.usage.cost],
  rows.slice(0, MOST_ROWS).map((row) => [name(row), number(row.turns), compact(row.prompt_tokens + row.completion_tokens), cost(row)])), rows.length > MOST_ROWS && h("p.hint", {}, S.usage.more(rows.length - MOST_ROWS)));

// A table whose columns but the first are figures.
function numbersOf(...given) {
  const made = tableOf(...given);
  made.classList.add("figures");
  return made;
}
